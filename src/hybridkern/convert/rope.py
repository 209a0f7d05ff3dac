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
    told = c.get("rope_parameters", dict, None) or c.get("rope_scaling", dict, None) or {}
    local = c.get("rope_local_base_freq", float, None)
    if "full_attention" in told:  # one entry for each kind of block
        slides = told.get("sliding_attention") or {}
        if slides.get("rope_type", "default") != "default":
            raise ModelError(f"config.json: sliding blocks have the rope_type {slides['rope_type']!r}: not supported")
        local, told = slides.get("rope_theta", local), told["full_attention"]
    default_base = 1e6 if arch.name == "gemma3" else 10000.0
    base = told.get("rope_theta") or c.get("rope_theta", float, default_base)
    partial = told.get("partial_rotary_factor") or c.get("partial_rotary_factor", float, 1.0)
    if partial != 1.0 and arch.name != "phi3":
        raise ModelError(f"config.json: 'partial_rotary_factor' is {partial}, which GGUF's {arch.name} has not")
    dims = int(head_dim * partial)
    keys: dict[str, Any] = {"rope.dimension_count": dims, "rope.freq_base": float(base)}
    if local is not None and arch.local_rope_base is not None and float(local) != arch.local_rope_base:
        keys["rope.freq_base_swa"] = float(local)
    kind = told.get("rope_type") or told.get("type") or "default"
    kind = {"su": "longrope"}.get(kind, kind)
    if kind not in _KNOWN:
        raise ModelError(f"config.json: rope scaling {kind!r} is not supported; known are {', '.join(_KNOWN)}")
    general = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
    for name in told.keys() - general - set(_KNOWN[kind].split()):
        raise ModelError(f"config.json: rope scaling {kind!r} has the key {name!r}, which is not known")
    if kind == "default":
        return keys, {}
    original = told.get("original_max_position_embeddings") or c.get("original_max_position_embeddings", int, context)
    if kind == "longrope":
        return _longrope(told, keys, dims, context, original)
    factor = _number(told, "factor")
    if kind == "llama3":
        return keys, {"rope_freqs.weight": _llama3(told, dims, float(base), factor, original)}
    keys |= {"rope.scaling.type": kind, "rope.scaling.factor": factor}
    if kind == "yarn":
        _yarn(told, keys, factor, original)
    return keys, {}


def _number(told: dict[str, Any], key: str) -> float:
    value = told.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and value > 0):
        raise ModelError(f"config.json: {key!r} of the rope scaling is {value!r}; a positive number is expected")
    return float(value)


def _yarn(told: dict[str, Any], keys: dict[str, Any], factor: float, original: int) -> None:
    if not told.get("truncate", True):
        raise ModelError("config.json: 'truncate' of the rope scaling is false, which GGUF cannot say")
    keys["rope.scaling.original_context_length"] = original
    for name in ("beta_fast", "beta_slow"):
        if told.get(name) is not None:
            keys[f"rope.scaling.yarn_{name}"] = _number(told, name)
    if told.get("attention_factor") is not None:
        # Readers multiply by YaRN's own "temperature", which the given factor replaces.
        keys["rope.scaling.attn_factor"] = _number(told, "attention_factor") / (1 + 0.1 * math.log(factor))


def _llama3(told: dict[str, Any], dims: int, base: float, factor: float, original: int) -> list[float]:
    """Fast pairs keep their frequency, slow ones are divided by the factor; between, a blend linear in turns."""
    low, high = _number(told, "low_freq_factor"), _number(told, "high_freq_factor")
    if low >= high:
        raise ModelError(f"config.json: 'low_freq_factor' = {low} must be below 'high_freq_factor' = {high}")
    divisors = []
    for pair in range(dims // 2):
        turns = original * base ** (-2 * pair / dims) / (2 * math.pi)
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors


def _longrope(told: dict[str, Any], keys: dict[str, Any], dims: int, context: int, original: int) -> Read:
    tensors = {}
    for name in ("short", "long"):
        key = f"{name}_factor"
        values = told.get(key)
        if not isinstance(values, list) or len(values) != dims // 2:
            raise ModelError(f"config.json: {key!r} of the rope scaling must list {dims // 2} numbers")
        tensors[f"rope_factors_{name}.weight"] = [_number({key: v}, key) for v in values]
        if told.get(f"{name}_mscale") is not None:
            raise ModelError(f"config.json: '{name}_mscale' of the rope scaling is not supported")
    stretch = told.get("factor") or context / original
    computed = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))
    given = told.get("attention_factor") is not None
    keys["rope.scaling.attn_factor"] = _number(told, "attention_factor") if given else computed
    keys["rope.scaling.original_context_length"] = original
    return keys, tensors
