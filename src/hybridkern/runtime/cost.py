"""What a piece of work takes: multiply-accumulates of its matrix products, and bytes that must be read.

Attention's own products are left out of the multiply-accumulates: they are not int8, and small beside the matrices at
the depths that are measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybridkern.model import LoadedModel

from .footprint import kv_token_bytes


@dataclass(frozen=True)
class Cost:
    """macs: multiply-accumulates; bytes: weights and cache read."""

    macs: int
    bytes: int


def prompt_cost(model: LoadedModel, n: int, n_ubatch: int, kv_type: str, depth: int = 0) -> Cost:
    """A prompt of n tokens behind `depth` others, with logits at the last: weights are read once for every ubatch."""
    macs, size = _blocks(model)
    head = model.weights.output
    passes = -(-n // n_ubatch)
    cache = sum(_cache_bytes(model, depth + min(n, (i + 1) * n_ubatch), kv_type) for i in range(passes))
    return Cost(n * macs + head.rows * head.cols, passes * size + head.data.nbytes + cache)


def decode_cost(model: LoadedModel, depth: int, n: int, kv_type: str) -> Cost:
    """n tokens one after the other, the first behind `depth` tokens."""
    macs, size = _blocks(model)
    head = model.weights.output
    cache = sum(_cache_bytes(model, depth + i + 1, kv_type) for i in range(n))
    return Cost(n * (macs + head.rows * head.cols), n * (size + head.data.nbytes) + cache)


def _blocks(model: LoadedModel) -> tuple[int, int]:
    """Multiply-accumulates a token and bytes of all matrices of the blocks."""
    weights = model.weights
    matrices = [w for w in weights.matrices() if w is not weights.embedding and w is not weights.output]
    return sum(w.rows * w.cols for w in matrices), sum(w.data.nbytes for w in matrices)


def _cache_bytes(model: LoadedModel, seen: int, kv_type: str) -> int:
    """Bytes of the cache that attention reads for a token that sees `seen` tokens."""
    return sum(
        (min(seen, block.window) if block.window else seen) * kv_token_bytes(model.config, i, kv_type)
        for i, block in enumerate(model.config.blocks)
    )
