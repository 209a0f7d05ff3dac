"""Hugging Face folders of the tests' tiny models, written from what the GGUF files of the same weights hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from sentencepiece import sentencepiece_model_pb2 as pb
from tiny import Tiny, write_tiny
from vocabularies import bpe, spm

CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def published_name(arch: str, name: str) -> str:
    """The name that a tensor of a GGUF file has in the published model."""
    fixed = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    stem, _, kind = name.rpartition(".")
    if stem in fixed:
        return f"{fixed[stem]}.{kind}"
    _, block, part = stem.split(".")
    names = NAMES | (GEMMA if arch.startswith("gemma") else {})
    names |= {"ffn_up": "mlp.gate_up_proj"} if arch == "phi3" else {}
    return f"model.layers.{block}.{names[part]}.{kind}"


def published_values(tiny: Tiny, name: str) -> np.ndarray:
    """The values of a tensor as the published model has them, float32."""
    values = tiny.weights[name].astype(np.float32)
    part = name.split(".")[-2]
    if tiny.arch == "llama" and part in ("attn_q", "attn_k"):
        n, half = (tiny.n_head if part == "attn_q" else tiny.n_head_kv)[0], tiny.head_dim // 2
        out = np.empty_like(values)
        for row in range(len(values)):  # neighbours (2 i, 2 i + 1) were i and i + half
            head, at = divmod(row, 2 * half)
            out[head * 2 * half + at // 2 + (at % 2) * half] = values[row]
        assert len(values) == n * 2 * half
        return out
    return values - np.float32(1) if tiny.arch.startswith("gemma") and part.endswith("norm") else values


def config_of(tiny: Tiny, tied: bool, biases: bool) -> dict[str, Any]:
    """config.json of a tiny model."""
    config: dict[str, Any] = {
        "architectures": ["MistralForCausalLM" if tiny.arch == "llama" and tiny.window else CLASSES[tiny.arch]],
        "hidden_size": tiny.n_embd,
        "num_hidden_layers": tiny.n_layer,
        "intermediate_size": tiny.n_ff[0],
        "num_attention_heads": tiny.n_head[0],
        "num_key_value_heads": tiny.n_head_kv[0],
        "head_dim": tiny.head_dim,
        "rms_norm_eps": tiny.eps,
        "max_position_embeddings": tiny.context,
        "vocab_size": tiny.n_vocab,
        "rope_theta": tiny.rope_base,
        "tie_word_embeddings": tied,
        "sliding_window": tiny.window or None,
        "attention_bias": biases,
        "hidden_act": "silu",
    }
    if tiny.rope_dims != tiny.head_dim:
        config["partial_rotary_factor"] = tiny.rope_dims / tiny.head_dim
    if tiny.arch.startswith("gemma"):
        config |= {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": tiny.head_dim}
        config |= {"attn_logit_softcapping": tiny.attention_softcap or None}
        config |= {"final_logit_softcapping": tiny.final_softcap or None}
    if tiny.scaling:
        config["rope_scaling"] = {"rope_type": tiny.scaling, "factor": tiny.factor}
    if tiny.scaling == "yarn":
        config["rope_scaling"]["original_max_position_embeddings"] = tiny.original_context
    if tiny.scaling == "longrope":
        factors = {k: tiny.weights[f"rope_factors_{k}.weight"].tolist() for k in ("short", "long")}
        config["rope_scaling"] = {"type": "longrope"} | {f"{k}_factor": v for k, v in factors.items()}
        config["original_max_position_embeddings"] = tiny.original_context
    if tiny.scaling == "llama3":
        config["rope_scaling"] |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        config["rope_scaling"]["original_max_position_embeddings"] = tiny.original_context
    return config


def sentencepiece_model(n_vocab: int) -> bytes:
    """tokenizer.model of the tests' SPM vocabulary."""
    keys, proto = spm(n_vocab), pb.ModelProto()
    listed = (keys[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type"))
    for text, score, kind in zip(*listed, strict=True):
        proto.pieces.add(piece=text, score=score, type=kind)
    proto.trainer_spec.model_type = pb.TrainerSpec.BPE
    proto.trainer_spec.byte_fallback = True
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = True
    proto.normalizer_spec.remove_extra_whitespaces = False
    return proto.SerializeToString()


def tokenizer_json(n_vocab: int) -> dict[str, Any]:
    """tokenizer.json of the tests' byte-level BPE vocabulary, with the pre-tokenizer as Qwen publishes it."""
    keys = bpe(n_vocab)
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    added = [{"id": i, "content": t, "special": True} for i, t in enumerate(tokens) if types[i] == 3]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    split = {"type": "Split", "pattern": {"Regex": QWEN_SPLIT}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [a | flags for a in added],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "vocab": {t: i for i, t in enumerate(tokens) if types[i] == 1},
            "merges": keys["tokenizer.ggml.merges"],
        },
    }


def write_folder(folder: Path, tiny: Tiny, *, tied: bool = False, biases: bool = False, shards: int = 1) -> Path:
    """Write the folder of a tiny model."""
    from safetensors.numpy import save_file

    folder.mkdir()
    factors = ("rope_freqs", "rope_factors")
    names = {published_name(tiny.arch, n): n for n in tiny.weights if not n.startswith(factors)}
    where = {}
    for i in range(shards):
        name = "model.safetensors" if shards == 1 else f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {p: published_values(tiny, n) for j, (p, n) in enumerate(names.items()) if j % shards == i}
        save_file(part, folder / name)
        where |= dict.fromkeys(part, name)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (folder / "config.json").write_text(json.dumps(config_of(tiny, tied, biases)))
    if tiny.arch.startswith("qwen"):
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(tiny.n_vocab)))
        told: dict[str, Any] = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    else:
        (folder / "tokenizer.model").write_bytes(sentencepiece_model(tiny.n_vocab))
        told = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told | {"chat_template": TEMPLATE}))
    return folder


def tiny_pair(root: Path, arch: str, shards: int = 1, **options: Any) -> tuple[Tiny, Path]:
    """A tiny model as GGUF, and its folder. Norms of Gemma are such that 1 comes off and on again without rounding."""
    options.setdefault("tied", False)
    tiny = write_tiny(root / "direct.gguf", arch, **options)
    extra = {}
    if arch.startswith("gemma"):
        extra = {n: np.round(w * 1024) / 1024 for n, w in tiny.weights.items() if n.endswith("_norm.weight")}
    if options.get("scaling") == "llama3":
        extra["rope_freqs.weight"] = llama3_divisors(tiny)
    if extra:
        tiny = write_tiny(root / "direct.gguf", arch, extra=extra, **options)
    biases = bool(options.get("biases"))
    return tiny, write_folder(root / "folder", tiny, tied=options["tied"], biases=biases, shards=shards)


def llama3_divisors(tiny: Tiny) -> np.ndarray:
    """By wavelengths, as the model's authors publish it (low 1, high 4)."""
    frequencies = tiny.rope_base ** (-2 * np.arange(tiny.rope_dims // 2) / tiny.rope_dims)
    out = []
    for frequency in frequencies:
        wavelength = 2 * np.pi / frequency
        if wavelength < tiny.original_context / 4:
            out.append(1.0)
        elif wavelength > tiny.original_context:
            out.append(tiny.factor)
        else:
            smooth = (tiny.original_context / wavelength - 1) / 3
            out.append(frequency / ((1 - smooth) * frequency / tiny.factor + smooth * frequency))
    return np.array(out)
