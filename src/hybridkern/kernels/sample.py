"""A stack of blocks with random weights: what calibration runs to see how fast a kernel set is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .interface import Angles, Buffer, KVSpec, Op, Recorder, Vector, Weight

# Bytes of a block of weights, and weights in it.
_BLOCKS = {"F16": (1, 2), "Q4_K": (256, 144), "Q6_K": (256, 210), "Q8_0": (32, 34), "Q4_0": (32, 18)}
VOCABULARY = 256
_POOL = 1 << 20  # random bytes, repeated


@dataclass(frozen=True)
class Shape:
    """d: width; f: of the feed-forward; heads of `head_dim` values, as many of keys and values."""

    d: int
    f: int
    heads: int
    head_dim: int
    type: str = "Q4_K"

    @property
    def weights(self) -> int:
        """Of a block."""
        return 4 * self.d * self.heads * self.head_dim + 3 * self.d * self.f

    @property
    def nbytes(self) -> int:
        """Of a block, as in a file."""
        block, size = _BLOCKS[self.type]
        return self.weights // block * size


def random_bytes(n: int, seed: int = 0) -> np.ndarray:
    """Bytes that make sane numbers in every format: no NaN, and nothing so small that a processor stumbles over it."""
    return np.random.default_rng(seed).integers(0x38, 0x40, n, np.uint8)


def random_matrix(name: str, type_name: str, rows: int, cols: int) -> Weight:
    """A matrix of random bytes."""
    block, size = _BLOCKS[type_name]
    row = cols // block * size
    pool = random_bytes(min(_POOL, rows * row), rows + cols)
    return Weight(name, type_name, rows, cols, np.resize(pool, rows * row).reshape(rows, row))


class Sample:
    """A model of such blocks, between a small embedding and a small head: what an engine needs of one."""

    def __init__(self, shape: Shape, n_blocks: int) -> None:
        self.shape = shape
        self.kv_specs = [KVSpec(i, shape.heads, shape.head_dim, shape.head_dim) for i in range(n_blocks)]

    def ops(self) -> tuple[list[Op], Buffer]:
        """Recorded operations of one step, and the buffer of logits."""
        r = Recorder()
        logits = self.record(r)
        return r.ops, logits

    def record(self, r: Recorder) -> Buffer:
        """As a model records a step."""
        shape, d, width = self.shape, self.shape.d, self.shape.heads * self.shape.head_dim
        norm = Vector("norm", np.ones(d, np.float32))
        angles = Angles("angles", 1 / 10000 ** (np.arange(shape.head_dim // 2) * 2 / shape.head_dim))
        x, h, q, k, v, a = (r.buffer(n, w) for n, w in zip("xhqkva", (d, d, width, width, width, width), strict=True))
        gate, up, gated = (r.buffer(n, shape.f) for n in ("gate", "up", "gated"))
        r.angles(angles)
        r.embed(x, random_matrix("embedding", "F16", VOCABULARY, d))
        for spec in self.kv_specs:

            def weight(name: str, rows: int, cols: int, block: int = spec.block) -> Weight:
                return random_matrix(f"blk.{block}.{name}.weight", shape.type, rows, cols)

            r.rmsnorm(h, x, norm, 1e-5)
            for out, name in ((q, "attn_q"), (k, "attn_k"), (v, "attn_v")):
                r.matmul(out, h, weight(name, width, d))
            r.rope(q, angles, shape.head_dim, "norm")
            r.rope(k, angles, shape.head_dim, "norm")
            r.store_kv(spec, k, v)
            r.attend(a, q, spec, shape.heads, shape.head_dim**-0.5)
            r.matmul(x, a, weight("attn_output", d, width), add=x)
            r.rmsnorm(h, x, norm, 1e-5)
            r.matmul(gate, h, weight("ffn_gate", shape.f, d))
            r.matmul(up, h, weight("ffn_up", shape.f, d))
            r.glu(gated, gate, up, "silu")
            r.matmul(x, gated, weight("ffn_down", d, shape.f), add=x)
        last, normed = r.buffer("last", d, "outputs"), r.buffer("normed", d, "outputs")
        logits = r.buffer("logits", VOCABULARY, "outputs")
        r.select(last, x)
        r.rmsnorm(normed, last, norm, 1e-5)
        r.matmul(logits, normed, random_matrix("output.weight", "F16", VOCABULARY, d))
        return logits
