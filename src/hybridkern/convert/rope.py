"""Rotary embedding of a config.json: metadata keys, and factors that GGUF carries as tensors.

Linear and YaRN scaling are keys; Llama 3's (arXiv 2407.21783) and LongRoPE's (2402.13753) divide frequencies.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hybridkern.errors import ModelError
from hybridkern.model.architectures import Architecture

if TYPE_CHECKING:
    from .hparams import Config

Read = tuple[dict[str, Any], dict[str, list[float]]]
_KNOWN = {
    "default": "",
    "linear": "factor",
    "llama3": "factor low_freq_factor high_freq_factor original_max_position_embeddings",
    "yarn": "factor original_max_position_embeddings attention_factor beta_fast beta_slow truncate",
    "longrope": "factor short_factor long_factor original_max_position_embeddings attention_factor "
    "short_mscale long_mscale",
}


def read_rope(c: Config, arch: Architecture, head_dim: int, context: int) -> Read:
    """(metadata, tensors by name). Raises ModelError, with the key, for a kind of scaling that is not known."""
    told = c.part("rope_parameters") or c.part("rope_scaling") or c.of({})
    local = c.positive("rope_local_base_freq", None)
    if "full_attention" in told.values:  # one entry for each kind of block
        slides = told.part("sliding_attention") or told.of({})
        if slides.get("rope_type", str, "default") != "default":
            raise ModelError("config.json: 'rope_type' of the sliding blocks is not 'default', which is not supported")
        local, told = slides.positive("rope_theta", local), told.part("full_attention") or told.of({})
    default_base = 1e6 if arch.name == "gemma3" else 10000.0
    base = told.positive("rope_theta", None) or c.positive("rope_theta", default_base)
    partial = told.positive("partial_rotary_factor", None) or c.positive("partial_rotary_factor", 1.0)
    if partial != 1.0 and (arch.name != "phi3" or partial > 1):
        raise ModelError(f"config.json: 'partial_rotary_factor' is {partial}, which GGUF's {arch.name} has not")
    dims = int(head_dim * partial)
    keys: dict[str, Any] = {"rope.dimension_count": dims, "rope.freq_base": base}
    if local is not None and arch.local_rope_base is not None and local != arch.local_rope_base:
        keys["rope.freq_base_swa"] = local
    kind = told.get("rope_type", str, None) or told.get("type", str, "default")
    kind = {"su": "longrope"}.get(kind, kind)
    if kind not in _KNOWN:
        raise ModelError(f"config.json: rope scaling {kind!r} is not supported; known are {', '.join(_KNOWN)}")
    general = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
    for name in told.values.keys() - general - set(_KNOWN[kind].split()):
        raise ModelError(f"config.json: rope scaling {kind!r} has the key {name!r}, which is not known")
    if kind == "default":
        return keys, {}
    original = told.count("original_max_position_embeddings", c.count("original_max_position_embeddings", context))
    if kind == "longrope":
        return _longrope(told, keys, dims, context, original)
    factor = told.positive("factor")
    if kind == "llama3":
        return keys, {"rope_freqs.weight": _llama3(told, dims, base, factor, original)}
    keys |= {"rope.scaling.type": kind, "rope.scaling.factor": factor}
    if kind == "yarn":
        _yarn(told, keys, factor, original)
    return keys, {}


def _yarn(told: Config, keys: dict[str, Any], factor: float, original: int) -> None:
    if not told.get("truncate", bool, True):
        raise ModelError("config.json: 'truncate' of the rope scaling is false, which GGUF cannot say")
    keys["rope.scaling.original_context_length"] = original
    for name in ("beta_fast", "beta_slow"):
        if told.values.get(name) is not None:
            keys[f"rope.scaling.yarn_{name}"] = told.positive(name)
    if told.values.get("attention_factor") is not None:
        # Readers multiply by YaRN's own "temperature", which the given factor replaces.
        keys["rope.scaling.attn_factor"] = told.positive("attention_factor") / (1 + 0.1 * math.log(factor))


def _llama3(told: Config, dims: int, base: float, factor: float, original: int) -> list[float]:
    """Fast pairs keep their frequency, slow ones are divided by the factor; between, a blend linear in turns."""
    low, high = told.positive("low_freq_factor"), told.positive("high_freq_factor")
    if low >= high:
        raise ModelError(f"config.json: 'low_freq_factor' = {low} must be below 'high_freq_factor' = {high}")
    divisors = []
    for pair in range(dims // 2):
        turns = original * base ** (-2 * pair / dims) / (2 * math.pi)
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors


def _longrope(told: Config, keys: dict[str, Any], dims: int, context: int, original: int) -> Read:
    tensors = {}
    for name in ("short", "long"):
        key = f"{name}_factor"
        values = told.get(key, list)
        if len(values) != dims // 2:
            raise ModelError(f"config.json: {key!r} of the rope scaling must list {dims // 2} numbers")
        tensors[f"rope_factors_{name}.weight"] = [told.of({key: v}).positive(key) for v in values]
        if told.values.get(f"{name}_mscale") is not None:
            raise ModelError(f"config.json: '{name}_mscale' of the rope scaling is not supported")
    stretch = told.positive("factor", context / original)
    computed = 1.0 if stretch <= 1 or original == 1 else math.sqrt(1 + math.log(stretch) / math.log(original))
    given = told.values.get("attention_factor") is not None
    keys["rope.scaling.attn_factor"] = told.positive("attention_factor") if given else computed
    keys["rope.scaling.original_context_length"] = original
    return keys, tensors
