"""Words that the mutator puts into files: strings, keys, names of tensors, pieces of templates."""

from __future__ import annotations

from pathlib import Path

STRINGS: tuple[bytes, ...] = (
    b"", b" ", b"  ", b"\t\t\t\t\t\ta", b"\n", b"\r\n", b"\0", b"a", b"ab", b"aa a", b"\xe2\x96\x81",
    b"\xe2\x96\x81a", b"\xff", b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xf0\x9f\xa6\x99.cpp",
    b"\xf4\x90\x80\x80", b"\xe0\xa4\xa8\xe0", b"\xef\xbf\xbd", b"\xef\xbb\xbf", b"<s>", b"</s>", b"<unk>", b"<0x41>",
    b"<0x4>", b"<0xFF>", b"<0xzz>", b"<|im_end|>", b"<|im_start|>", b"<|endoftext|>", b"<|end|>", b"<|return|>",
    b"<|call|>", b"<pad>", b"h e", b" h", b"h ", b"e h l", b"llama", b"gpt2", b"bert", b"default", b"qwen2",
    b"gpt-2", b"llama-bpe", b"gpt-4o", b"deepseek-llm", b"tekken", b"kimi-k2", b"bloom", b"smollm", b"falcon",
    b"gemma3", b"gemma2", b"phi3", b"qwen3", b"longrope", b"yarn", b"linear", b"su", b"none", b"Phi-3 mini",
    b"\xd8\xa7\xd9\x84", b"e\xcc\x81", b"0123456789", b"don't", b"A" * 300, b"\xe4\xb8\xad" * 40, b"." * 500, b"0",
    b"-1", b"%s%n", b"../../etc/passwd", b"{{", b"}}", b"\x1b[2J",
)  # fmt: skip

_MODEL = (
    "block_count", "embedding_length", "context_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
    "attention.sliding_window", "attention.sliding_window_pattern", "attention.scale", "attention.causal",
    "expert_count", "rope.dimension_count", "rope.freq_base", "rope.freq_base_swa", "rope.scaling.type",
    "rope.scaling.factor", "rope.scale_linear", "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
    "rope.scaling.original_context_length", "vocab_size", "attn_logit_softcapping", "final_logit_softcapping",
)  # fmt: skip
_TOKENIZER = (
    "ggml.model", "ggml.pre", "ggml.tokens", "ggml.token_type", "ggml.scores", "ggml.merges", "ggml.bos_token_id",
    "ggml.eos_token_id", "ggml.eot_token_id", "ggml.eom_token_id", "ggml.unknown_token_id", "ggml.padding_token_id",
    "ggml.fim_pad_token_id", "ggml.add_bos_token", "ggml.add_eos_token", "ggml.add_space_prefix", "chat_template",
)  # fmt: skip
TEMPLATE_KEYS = frozenset({b"tokenizer.chat_template"})
TEXT_KEYS = TEMPLATE_KEYS | {b"fuzz.text"}
KEYS: tuple[bytes, ...] = (
    b"general.architecture", b"general.alignment", b"general.name", b"split.no", b"split.count", b"split.tensors.count",
    b"fuzz.text", b"fuzz.messages", b"", b"\xff", b"x", b"k" * 300,
    *(f"{arch}.{name}".encode() for arch in ("llama", "gemma3", "phi3") for name in _MODEL),
    *(f"tokenizer.{name}".encode() for name in _TOKENIZER),
)  # fmt: skip

TENSORS: tuple[bytes, ...] = (
    b"token_embd.weight", b"output.weight", b"output.bias", b"output_norm.weight", b"rope_freqs.weight",
    b"rope_factors_short.weight", b"rope_factors_long.weight", b"", b"\xff", b"a" * 65, b"b" * 257,
    b"blk.9.attn_q.weight",
    b"blk.99999999999999999999.ffn_up.weight", b"blk.0.attn_rot_embd.weight", b"blk.0.layer_scale.weight",
    b"blk.\xd9\xa1.x",
    *(f"blk.{i}.{name}.{kind}".encode()
      for i in (0, 1)
      for kind in ("weight", "bias")
      for name in ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "attn_norm", "attn_q_norm", "attn_k_norm",
                   "ffn_norm", "ffn_gate", "ffn_up", "ffn_down", "post_attention_norm", "post_ffw_norm")),
)  # fmt: skip

_FILE = Path(__file__).with_name("jinja.txt")
JINJA: tuple[bytes, ...] = (
    *_FILE.read_bytes().splitlines(), b"{{ 9" + b"9" * 4400 + b" }}", b"%}{%" * 30, b"{% if 1 %}" * 30,
    b"{% for a in [1] %}" * 25, b"not " * 500, b"(" * 500, b"\xff", b"\0", b"\xed\xa0\x80", b"\n",
)  # fmt: skip
