"""Rotary position embedding: the frequencies behind the angles, in float64.

RoPE (arXiv 2104.09864) rotates pair i of a head at position p by p * base^(-2i / dims). Longer contexts than the model
was trained on change the frequencies:

- linear (position interpolation, arXiv 2306.15595): all of them divided by a factor;
- Llama 3 (2407.21783): divided by factors that the file carries in `rope_freqs.weight`, 1 for the fast pairs;
- YaRN (2309.00071): a blend of divided (slow pairs) and unchanged (fast pairs), and cos and sin times a "temperature";
- LongRoPE (2402.13753): divided by searched factors, one set for sequences up to the original context and one for
  longer ones, cos and sin times an attention factor.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from hybridkern.errors import ModelError
from hybridkern.kernels.interface import Angles

from .config import ModelConfig, RopeConfig

Floats = npt.NDArray[np.float64]


def frequencies(dims: int, base: float) -> Floats:
    """base^(-2i / dims) for every pair i: [dims / 2]."""
    return float(base) ** (-2.0 * np.arange(dims // 2, dtype=np.float64) / dims)


def yarn_ramp(rope: RopeConfig) -> Floats:
    """YaRN's gamma for every pair: 1 keeps the frequency, 0 divides it by the factor. [dims / 2]

    A pair that turns r times over the original context has the index dims * ln(context / (2 pi r)) / (2 ln base);
    between beta_fast and beta_slow turns gamma falls linearly over the (rounded) index.
    """

    def pair_of(turns: float) -> float:
        if turns <= 0:
            return math.inf
        return rope.dims * math.log(rope.original_context / (2 * math.pi * turns)) / (2 * math.log(rope.base))

    low = max(0, math.floor(pair_of(rope.beta_fast)))
    last = pair_of(rope.beta_slow)
    high = rope.dims - 1 if math.isinf(last) else min(rope.dims - 1, math.ceil(last))
    pairs = np.arange(rope.dims // 2, dtype=np.float64)
    return 1.0 - np.clip((pairs - low) / max(0.001, high - low), 0.0, 1.0)


def scaled(rope: RopeConfig) -> tuple[Floats, float]:
    """Frequencies [dims / 2] after linear or YaRN scaling, and what cos and sin are multiplied by."""
    inv_freq = frequencies(rope.dims, rope.base)
    mscale = rope.attn_factor or 1.0
    if rope.scaling == "linear":
        return inv_freq / rope.factor, mscale
    if rope.scaling == "yarn":
        gamma = yarn_ramp(rope) * rope.ext_factor
        if rope.ext_factor > 0:
            mscale *= 1.0 + 0.1 * math.log(max(1.0, rope.factor))
        return inv_freq / rope.factor * (1.0 - gamma) + inv_freq * gamma, mscale
    return inv_freq, mscale


def longrope_attention_factor(rope: RopeConfig, context_length: int) -> float:
    """sqrt(1 + ln(s) / ln(original context)), s being how many times the context was extended; 1 if it was not."""
    if rope.attn_factor is not None:
        return rope.attn_factor
    s = context_length / rope.original_context
    return 1.0 if s <= 1.0 else math.sqrt(1.0 + math.log(s) / math.log(rope.original_context))


def global_angles(
    config: ModelConfig, factors: Floats | None = None, short: Floats | None = None, long: Floats | None = None
) -> Angles:
    """The angles of the blocks that attend to everything (and of the sliding ones where they share them).

    factors: `rope_freqs.weight`; short, long: `rope_factors_short.weight` and `rope_factors_long.weight`; each
    [dims / 2] or None.
    """
    rope = config.rope
    inv_freq, mscale = scaled(rope)
    if factors is not None:
        inv_freq = inv_freq / factors
    if (short is None) != (long is None):
        raise ModelError("rope_factors_short.weight and rope_factors_long.weight must both be there, or neither")
    if short is None or long is None:
        if rope.scaling == "longrope":
            raise ModelError(
                f"{config.key('rope.scaling.type')} is longrope, but the file holds no rope_factors_long.weight"
            )
        return Angles("rope", inv_freq, mscale)
    mscale = longrope_attention_factor(rope, config.context_length)
    return Angles("rope", inv_freq / short, mscale, inv_freq / long, mscale)


def local_angles(config: ModelConfig) -> Angles | None:
    """The angles of the sliding blocks, where they have a base of their own; no scaling applies to them."""
    if config.rope.local_base is None or not any(b.window for b in config.blocks):
        return None
    return Angles("rope_local", frequencies(config.rope.dims, config.rope.local_base))
