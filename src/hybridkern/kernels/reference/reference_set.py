"""ReferenceSet: runs a recorded model in NumPy float64, one operation after the other, with no thought of speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkern.errors import KernelError
from hybridkern.kernels.interface import Angles, Batch, Buffer, KVSpec, Op, Vector, Weight

from .attention import SequenceCache
from .matrices import Matrices

Floats = npt.NDArray[np.float64]


def _activation(x: Floats, name: str) -> Floats:
    if name == "silu":
        return x / (1.0 + np.exp(-x))
    if name == "gelu_tanh":
        return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))
    raise KernelError(f"unknown activation {name!r}; known are silu and gelu_tanh")


def _rms(x: Floats, eps: float) -> Floats:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


class ReferenceSet:
    """Interprets the operations that a model recorded, keeping the KV cache of every sequence.

    ops: `Recorder.ops`. cache_weights: keep dequantised weights as float32 between runs. quantize_activations: round
    the inputs of products with quantised weights to int8 as the kernel sets do (the product itself stays float64).
    """

    def __init__(self, ops: Sequence[Op], *, cache_weights: bool = True, quantize_activations: bool = False) -> None:
        self.ops = tuple(ops)
        self._matrices = Matrices(cache_weights, quantize_activations)
        self._caches: dict[tuple[int, int], SequenceCache] = {}
        self._values: dict[Buffer, Floats] = {}
        self._angles: dict[Angles, Floats] = {}
        self._batch: Batch
        unknown = sorted({op.kind for op in ops if not hasattr(self, f"_op_{op.kind}")})
        if unknown:
            raise KernelError(f"the reference set does not know the operations {', '.join(unknown)}")

    def reset(self) -> None:
        """Forget every sequence."""
        self._caches.clear()

    def run(self, batch: Batch) -> Floats:
        """Run one step; returns what the last operation wrote, the logits: float64 [outputs][n_vocab]."""
        self._batch = batch
        self._values.clear()
        for op in self.ops:
            getattr(self, f"_op_{op.kind}")(op.out, *op.args, **op.params)
        return self.value(self.ops[-1].out)

    def value(self, buffer: Buffer) -> Floats:
        """What a buffer holds after the last run (buffers that blocks share: what the last block left)."""
        root = buffer.root
        if root not in self._values:
            raise KernelError(f"buffer {root.name!r} is read before anything was written to it")
        return self._values[root][:, buffer.offset : buffer.offset + buffer.width]

    def _write(self, buffer: Buffer, value: Floats) -> None:
        root = buffer.root
        n = len(self._batch.tokens if root.rows == "tokens" else self._batch.outputs)
        if value.shape != (n, buffer.width):
            raise KernelError(f"buffer {buffer.name!r} is {(n, buffer.width)}, but {value.shape} is written to it")
        if root is buffer:
            self._values[root] = value
            return
        if root not in self._values:
            self._values[root] = np.full((n, root.width), np.nan)
        self._values[root][:, buffer.offset : buffer.offset + buffer.width] = value

    def _op_embed(self, out: Buffer, table: Weight, scale: float) -> None:
        self._write(out, self._matrices.rows(table, np.asarray(self._batch.tokens, np.int64)) * scale)

    def _op_angles(self, out: Angles) -> None:
        positions = np.asarray(self._batch.positions, np.float64)[:, None]
        theta, mscale = positions * out.inv_freq, np.full_like(positions, out.mscale)
        variants = self._batch.variants
        if variants is not None and out.inv_freq_long is not None:
            chosen = np.asarray(variants)[:, None] == 1
            theta = np.where(chosen, positions * out.inv_freq_long, theta)
            mscale = np.where(chosen, out.mscale_long, mscale)
        self._angles[out] = np.stack([np.cos(theta) * mscale, np.sin(theta) * mscale], axis=-1)

    def _op_rmsnorm(self, out: Buffer, x: Buffer, weight: Vector | None, add: Buffer | None, eps: float) -> None:
        y = _rms(self.value(x), eps)
        if weight is not None:
            y = y * weight.data.astype(np.float64)
        self._write(out, y if add is None else y + self.value(add))

    def _op_matmul(
        self, out: Buffer, x: Buffer, w: Weight, bias: Vector | None, add: Buffer | None, precise: bool
    ) -> None:
        y = self._matrices.multiply(self.value(x), w, precise)
        if bias is not None:
            y += bias.data
        self._write(out, y if add is None else y + self.value(add))

    def _op_head_norm(self, out: Buffer, x: Buffer, weight: Vector, head_dim: int, eps: float) -> None:
        heads = self.value(x).reshape(len(self._batch.tokens), -1, head_dim)
        self._write(out, (_rms(heads, eps) * weight.data.astype(np.float64)).reshape(-1, x.width))

    def _op_rope(self, out: Buffer, x: Buffer, angles: Angles, head_dim: int, layout: str) -> None:
        heads = self.value(x).reshape(len(self._batch.tokens), -1, head_dim).copy()
        turns = self._angles[angles]
        half = turns.shape[1]
        cos, sin = turns[:, None, :, 0], turns[:, None, :, 1]
        if layout == "norm":
            first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        elif layout == "neox":
            first, second = slice(0, half), slice(half, 2 * half)
        else:
            raise KernelError(f"unknown rotary layout {layout!r}; known are norm and neox")
        a, b = heads[..., first].copy(), heads[..., second].copy()
        heads[..., first], heads[..., second] = a * cos - b * sin, a * sin + b * cos
        self._write(out, heads.reshape(-1, x.width))

    def _sequences(self) -> list[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """(sequence, its rows of the step, their positions) for every sequence of the step."""
        sequences, positions = np.asarray(self._batch.sequences), np.asarray(self._batch.positions, np.int64)
        rows = [(int(s), np.flatnonzero(sequences == s)) for s in np.unique(sequences)]
        return [(s, r, positions[r]) for s, r in rows]

    def _op_store_kv(self, kv: KVSpec, k: Buffer, v: Buffer) -> None:
        keys = self.value(k).reshape(-1, kv.n_kv, kv.head_dim_k)
        values = self.value(v).reshape(-1, kv.n_kv, kv.head_dim_v)
        for sequence, rows, positions in self._sequences():
            cache = self._caches.setdefault((kv.block, sequence), SequenceCache(kv))
            cache.store(positions, keys[rows], values[rows])

    def _op_attend(
        self, out: Buffer, q: Buffer, kv: KVSpec, n_head: int, scale: float, window: int, softcap: float
    ) -> None:
        queries = self.value(q).reshape(-1, n_head, kv.head_dim_k)
        y = np.empty((len(queries), n_head, kv.head_dim_v))
        for sequence, rows, positions in self._sequences():
            cache = self._caches[kv.block, sequence]
            y[rows] = cache.attend(queries[rows], positions, scale, window, softcap)
        self._write(out, y.reshape(-1, out.width))

    def _op_glu(self, out: Buffer, gate: Buffer, up: Buffer, act: str) -> None:
        self._write(out, _activation(self.value(gate), act) * self.value(up))

    def _op_add(self, out: Buffer, a: Buffer, b: Buffer) -> None:
        self._write(out, self.value(a) + self.value(b))

    def _op_scale(self, out: Buffer, x: Buffer, factor: float) -> None:
        self._write(out, self.value(x) * factor)

    def _op_softcap(self, out: Buffer, x: Buffer, cap: float) -> None:
        self._write(out, cap * np.tanh(self.value(x) / cap))

    def _op_select(self, out: Buffer, x: Buffer) -> None:
        self._write(out, self.value(x)[np.asarray(self._batch.outputs, np.int64)])

    def _op_observe(self, out: Buffer, x: Buffer, sums: np.ndarray | None = None, **_: Any) -> None:
        if sums is not None:  # without them nothing is to do: every value can be read after each operation
            values = self.value(x)
            sums[:-1] += (values * values).sum(axis=0)
            sums[-1] += len(values)
