"""From config.json to the metadata keys of a GGUF file; what has no key there is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hybridkern.errors import ModelError
from hybridkern.model.architectures import ARCHITECTURES, Architecture
from hybridkern.model.config import MAX_BLOCKS, MAX_CONTEXT

from .rope import read_rope

NAMES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Phi3ForCausalLM": "phi3",
}
_ACTIVATIONS = {"silu": {"silu", "swish"}, "gelu_tanh": {"gelu_pytorch_tanh"}}
# Read here or in rope.py and the tokenizers.
_READ = """
    architectures model_type hidden_size num_hidden_layers intermediate_size num_attention_heads num_key_value_heads
    head_dim rms_norm_eps max_position_embeddings vocab_size tie_word_embeddings hidden_act hidden_activation
    attention_bias mlp_bias sliding_window use_sliding_window max_window_layers layer_types sliding_window_pattern
    _sliding_window_pattern attn_logit_softcapping final_logit_softcapping query_pre_attn_scalar rope_theta
    rope_scaling rope_parameters rope_local_base_freq partial_rotary_factor original_max_position_embeddings
    bos_token_id eos_token_id pad_token_id
"""
# These say how the model was made, trained or is cached: they change no result.
_HARMLESS = """
    _name_or_path transformers_version torch_dtype dtype use_cache initializer_range attention_dropout auto_map
    pretraining_tp embd_pdrop resid_pdrop cache_implementation is_llama_config id2label label2id
    _attn_implementation_autoset unsloth_fixed unsloth_version return_dict output_attentions output_hidden_states
    transformers.js_config attention_probs_dropout_prob
"""
# Keys that are fine with these values only.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "quantization_config": (None,),
    "num_local_experts": (None, 0),
    "num_experts": (None, 0),
    "is_causal": (None, True),
    "use_mrope": (None, False),
    "use_bidirectional_attention": (None, False),
    "rope_interleaved": (None, False),
    "embedding_multiplier": (None, 1, 1.0),
    "logits_scaling": (None, 1, 1.0),
    "residual_multiplier": (None, 1, 1.0),
}


@dataclass
class Shape:
    """What the tensors follow from, the metadata (without the architecture's prefix), and notes for the user.

    rope_tensors: name -> divisors of the frequencies, which lie in the file as tensors.
    """

    arch: Architecture
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ff: int
    n_vocab: int
    tied: bool
    attention_bias: bool
    mlp_bias: bool
    metadata: dict[str, Any] = field(default_factory=dict)
    rope_tensors: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Config:
    """The keys of config.json, with their types checked."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def get(self, key: str, kind: type, default: Any = ...) -> Any:
        """The value of a key; null counts as absent. Raises ModelError for another type, or without a default."""
        value = self.values.get(key)
        if value is None:
            if default is ...:
                raise ModelError(f"config.json: {key!r} is missing")
            return default
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise ModelError(f"config.json: {key!r} is {value!r}; {kind.__name__} is expected")
        return value

    def of(self, values: Mapping[str, Any]) -> Config:
        """Other values, read in the same way."""
        return Config(values)

    def part(self, key: str) -> Config:
        """The object that a key holds; an empty one where it is absent."""
        return Config(self.get(key, dict, {}))

    def __bool__(self) -> bool:
        return bool(self.values)

    def positive(self, key: str, default: Any = ...) -> Any:
        """A finite number above 0."""
        value = self.get(key, float, default)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ModelError(f"config.json: {key!r} is {value}; a positive number is expected")
        return value

    def count(self, key: str, default: Any = ...) -> int:
        """A number of things: 1 or more."""
        value = int(self.get(key, int, default))
        if not 1 <= value <= MAX_CONTEXT:
            raise ModelError(f"config.json: {key!r} is {value}; 1 to {MAX_CONTEXT} is expected")
        return value


def read_shape(values: Mapping[str, Any]) -> Shape:
    """Read a config.json. Raises ModelError with the key for what is missing, malformed, or not supported."""
    c = Config(values)
    arch = _architecture(c)
    for key, fine in _REFUSED.items():
        if values.get(key) not in fine:
            raise ModelError(f"config.json: {key!r} is {values[key]!r}, which is not supported")
    gemma = arch.scale_embedding
    activation = c.get("hidden_activation", str, None) if gemma else None
    # Early Gemma files say "gelu" and mean its tanh approximation.
    activation = activation or ("gelu_pytorch_tanh" if gemma else c.get("hidden_act", str, "silu"))
    if activation not in _ACTIVATIONS[arch.activation]:
        raise ModelError(f"config.json: the activation is {activation!r}; {arch.name} has {arch.activation}")
    n_embd, n_head = c.count("hidden_size"), c.count("num_attention_heads")
    if c.values.get("head_dim") is None and n_embd % n_head:
        raise ModelError(f"config.json: 'num_attention_heads' = {n_head} does not divide 'hidden_size' = {n_embd}")
    default_dim = 256 if gemma else 128 if arch.name == "qwen3" else n_embd // n_head
    shape = Shape(
        arch=arch,
        n_layer=c.count("num_hidden_layers"),
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=c.count("num_key_value_heads", n_head),
        head_dim=c.count("head_dim", default_dim),
        n_ff=c.count("intermediate_size"),
        n_vocab=c.count("vocab_size"),
        tied=c.get("tie_word_embeddings", bool, gemma),
        attention_bias=c.get("attention_bias", bool, False),
        mlp_bias=c.get("mlp_bias", bool, False),
    )
    if shape.n_layer > MAX_BLOCKS:
        raise ModelError(f"config.json: 'num_hidden_layers' is {shape.n_layer}; {MAX_BLOCKS} at most are expected")
    context = c.count("max_position_embeddings")
    shape.metadata |= {
        "context_length": context,
        "embedding_length": n_embd,
        "block_count": shape.n_layer,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": shape.n_head_kv,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": c.positive("rms_norm_eps", 1e-5 if arch.name == "phi3" else 1e-6),
        "vocab_size": shape.n_vocab,
    }
    _windows(c, shape, context)
    _attention(c, shape)
    rope, shape.rope_tensors = read_rope(c, arch, shape.head_dim, context)
    shape.metadata |= rope
    unknown = sorted(values.keys() - {*_READ.split(), *_HARMLESS.split(), *_REFUSED})
    shape.notes += [f"config.json: {key!r} is not known here and is left out" for key in unknown]
    return shape


def _architecture(c: Config) -> Architecture:
    names = c.get("architectures", list)
    if len(names) != 1 or str(names[0]) not in NAMES:
        raise ModelError(f"config.json: 'architectures' is {names!r}; the known ones are {', '.join(NAMES)}")
    return ARCHITECTURES[NAMES[names[0]]]


def _windows(c: Config, shape: Shape, context: int) -> None:
    arch, n = shape.arch, shape.n_layer
    window = c.get("sliding_window", int, None)
    kinds = c.get("layer_types", list, None)
    for kind in kinds or ():
        if kind not in ("full_attention", "sliding_attention"):
            raise ModelError(f"config.json: 'layer_types' has {kind!r}, which is not supported")
    if kinds is not None and len(kinds) != n:
        raise ModelError(f"config.json: 'layer_types' has {len(kinds)} entries for {n} layers")
    if not arch.sliding:
        slides = "sliding_attention" in kinds if kinds else c.get("use_sliding_window", bool, False)
        reached = window is not None and window < context and c.get("max_window_layers", int, 0) < n
        if slides and reached:
            raise ModelError(f"config.json: 'sliding_window' = {window} is in use, which GGUF's {arch.name} has not")
        return
    if arch.full_every == 0:
        if kinds and window and len(set(kinds)) > 1:
            raise ModelError("config.json: 'layer_types' mixes sliding and full attention in this architecture")
        if kinds and "full_attention" in kinds:
            window = None
        if arch.name == "phi3":
            shape.metadata["attention.sliding_window"] = window or 0  # 0 is what tells Phi-4 from Phi-3
        elif window and window < context and c.values["architectures"] == ["MistralForCausalLM"]:
            shape.metadata["attention.sliding_window"] = window
            shape.notes.append(f"the window of {window} tokens is kept; llama.cpp ignores it in this architecture")
        return
    every = c.get("sliding_window_pattern", int, None) or c.get("_sliding_window_pattern", int, arch.full_every)
    pattern = [k == "sliding_attention" for k in kinds] if kinds else [i % every < every - 1 for i in range(n)]
    shape.metadata["attention.sliding_window"] = window or 4096
    if pattern != [i % arch.full_every < arch.full_every - 1 for i in range(n)]:
        shape.metadata["attention.sliding_window_pattern"] = pattern
        shape.notes.append("blocks slide in another order than usual: older engines ignore that key")


def _attention(c: Config, shape: Shape) -> None:
    """Soft caps, and the scale of queries where it is not what a reader of GGUF takes by itself."""
    arch = shape.arch
    if not arch.scale_embedding:
        return
    gemma2 = arch.name == "gemma2"
    for key, to, default in (
        ("attn_logit_softcapping", "attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", "final_logit_softcapping", 30.0),
    ):
        absent = default if key not in c.values and gemma2 else 0.0
        cap = c.get(key, float, absent)
        if cap or gemma2:
            shape.metadata[to] = cap
    own = shape.n_embd / shape.n_head if shape.n_layer == arch.wide_query_blocks else float(shape.head_dim)
    scalar = c.positive("query_pre_attn_scalar", 256.0)
    if scalar != own:
        shape.metadata["attention.scale"] = scalar**-0.5
        shape.notes.append(f"'query_pre_attn_scalar' = {scalar:g} is attention.scale, which not all engines read")
