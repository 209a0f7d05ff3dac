"""Turns fused operations into a tape: places buffers in memory and fills the C structs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridkern.errors import KernelError
from hybridkern.kernels import _cpu
from hybridkern.kernels.interface import Angles, Buffer, KVSpec, Vector

from .fusion import ALIGN, Act, Fused, Span, product_input
from .weights import ACT_F32, ACT_Q8_32, ACT_Q8_PAIR, FORMATS, CpuWeights, require_matrix

PAGE = 128  # tokens per KV page
SPLIT_ROWS = 4  # most rows of attention that is split by pages
MAX_GROUP, MAX_HEAD_DIM = 128, 512
MAX_NORM_WIDTH = 131072
TILE_COLUMNS = 16  # of an input in tiles of bf16
_ELEMENTS = {"quantize": 0, "glu": 1, "add": 2, "scale": 3, "softcap": 4}
_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}
_LAYOUTS = {"norm": 0, "neox": 1}

View = tuple[int, int, int]


@dataclass(frozen=True)
class CacheLayout:
    """Where the KV cache's pages lie: one page holds all blocks. planes: (offset, K bytes, V bytes) by block."""

    kv_type: int
    address: int
    page_bytes: int
    planes: dict[int, tuple[int, int, int]]
    max_pages: int  # of one sequence


def padded(n: int, multiple: int = ALIGN) -> int:
    """n rounded up to a multiple."""
    return -(-n // multiple) * multiple


def spread(n: int, line: int) -> int:
    """n rounded up to an odd number of cache lines: rows a power of two apart would meet in a few sets of a cache."""
    return (-(-n // line) | 1) * line


class TapeBuilder:
    """One tape for steps of at most max_rows tokens and max_outputs outputs; slots provide the buffer `logits`."""

    def __init__(
        self,
        table: _cpu.KernelTable,
        weights: CpuWeights,
        cache: CacheLayout,
        logits: Buffer | None,
        max_rows: int,
        max_outputs: int,
    ) -> None:
        self.tape = _cpu.Tape(table, max_rows=max_rows, max_outputs=max_outputs, max_pages=cache.max_pages)
        self._weights, self._cache, self._logits = weights, cache, logits
        self._max_rows, self._max_outputs = max_rows, max_outputs
        self._buffers: dict[Buffer, int] = {}
        self._strides: dict[Buffer, int] = {}
        self._acts: dict[Act, int] = {}
        self._angles: dict[Angles, int] = {}
        self._kvs: dict[KVSpec, int] = {}
        self._partial = (0, 0)  # heads, floats per partial result
        self.nbytes = 0
        self.memory: list[_cpu.Memory] = []  # of values that steps compute
        self.tape.own(weights)
        self.tape.set_cache(cache.kv_type, cache.address, cache.page_bytes)

    def build(self, segments: Sequence[Sequence[Fused]]) -> list[tuple[int, int]]:
        """Appends the operations of segments, and says between which numbers each lies."""
        ranges, had = [], self._partial
        for fused in segments:
            first = self.tape.n_ops
            for f in fused:
                getattr(self, f"_add_{f.kind}", self._add_elements)(f)
            ranges.append((first, self.tape.n_ops))
        heads, stride = self._partial
        if self._partial != had:
            size = SPLIT_ROWS * heads * self._cache.max_pages * stride * 4
            self.tape.set_partial(self._memory(size), stride)
        return ranges

    def end(self, b: Buffer) -> tuple[int, int]:
        """Address of a buffer's or view's first value, and the values from row to row."""
        base, stride = self.tape.buffer(self._buffer(b.root))
        return base + 4 * b.offset, stride

    # memory

    def _memory(self, nbytes: int) -> int:
        self.nbytes += nbytes
        self.memory.append(self.tape.own(_cpu.Memory(nbytes, True)))
        return self.memory[-1].address

    def _rows(self, root: Buffer) -> int:
        return self._max_rows if root.rows == "tokens" else self._max_outputs

    def _buffer(self, root: Buffer) -> int:
        if root not in self._buffers:
            own = self._logits is None or root is not self._logits.root
            stride = self._strides[root] = spread(root.width, ALIGN) if own else padded(root.width)
            base = self._memory(self._rows(root) * stride * 4) if own else 0
            self._buffers[root] = self.tape.add_buffer(base, stride, root.rows == "outputs")
        return self._buffers[root]

    def _view(self, b: Buffer | None) -> View | None:
        return None if b is None else (self._buffer(b.root), b.offset, b.width)

    def _act(self, act: Act) -> int:
        if act in self._acts:
            return self._acts[act]
        K, n, add = act.span.width, self._rows(act.span.root), self.tape.add_act
        alias: Any = None
        sizes: dict[str, int] = {}
        if act.is_alias:
            alias = (self._buffer(act.span.root), act.span.offset, K)
        elif act.kind == ACT_F32:
            sizes = {"x_stride": padded(K)}
            sizes["x"] = self._memory(n * sizes["x_stride"] * 4)
        else:
            n *= 2 if act.kind == ACT_Q8_PAIR else 1
            sizes = {
                "codes_stride": spread(K, 64),
                "scales_stride": padded(K // 32),
                "sums_stride": padded(K // 16, 32),
            }
            sizes["codes"] = self._memory(n * sizes["codes_stride"])
            sizes["scales"] = self._memory(n * sizes["scales_stride"] * 4)
            sizes["sums"] = self._memory(n * sizes["sums_stride"] * 2)
            if act.kind == ACT_Q8_32 and self.tape.table.reads_tiles:
                sizes["tiles_stride"] = _cpu.tiles_stride(K)
                sizes["tiles"] = self._memory(-(-n // TILE_COLUMNS) * sizes["tiles_stride"] * 2)
        self._acts[act] = add(act.kind, alias, K, **sizes)
        return self._acts[act]

    def _array(self, v: Vector | None, width: int) -> int:
        """Address of a vector, float32 [width]; 0 for none."""
        if v is None:
            return 0
        data = np.ascontiguousarray(v.data, np.float32)
        if data.shape != (width,):
            raise KernelError(f"{v.name} has the shape {data.shape}, but {width} values are needed")
        return int(self.tape.own(data).ctypes.data)

    def _angle(self, a: Angles) -> int:
        if a not in self._angles:
            freq = self.tape.own(np.ascontiguousarray(a.inv_freq, np.float64))
            long = a.inv_freq_long
            if long is not None:
                long = self.tape.own(np.ascontiguousarray(long, np.float64))
            half = len(freq)
            cs = self._memory(self._max_rows * half * 8)
            long_at = 0 if long is None else long.ctypes.data
            self._angles[a] = self.tape.add_angles(half, freq.ctypes.data, a.mscale, long_at, a.mscale_long, cs)
        return self._angles[a]

    def _kv(self, kv: KVSpec) -> int:
        if kv not in self._kvs:
            self._kvs[kv] = self.tape.add_kv(*self._cache.planes[kv.block], kv.n_kv, kv.head_dim_k, kv.head_dim_v)
        return self._kvs[kv]

    # operations

    def _emit(self, f: Fused) -> list[int]:
        return [self._act(a) for a in f.emit]

    def _add_embed(self, f: Fused) -> None:
        assert f.op is not None
        w = f.op.args[0]
        require_matrix(w)
        if f.op.out.width != w.cols:
            raise KernelError(f"{w.name} has rows of {w.cols} values, the buffer holds {f.op.out.width}")
        raw = self.tape.own(w.data)
        row_bytes = raw.strides[0]
        self.tape.embed(
            f.sync, self._view(f.op.out), FORMATS[w.type][0], raw.ctypes.data, row_bytes, w.rows, f.op.params["scale"]
        )

    def _add_angles(self, f: Fused) -> None:
        assert f.op is not None
        self.tape.angles(f.sync, self._angle(f.op.out))

    def _add_rmsnorm(self, f: Fused) -> None:
        assert f.op is not None
        x, weight, add = f.op.args
        if x.width != f.op.out.width or x.width > MAX_NORM_WIDTH:
            raise KernelError(f"RMS norm of {x.name} ({x.width} values) into {f.op.out.name} ({f.op.out.width})")
        at = self._array(weight, x.width)
        self.tape.norm(
            f.sync, self._view(f.op.out), self._view(x), self._view(add), at, f.op.params["eps"], self._emit(f)
        )

    def _add_matmul(self, f: Fused) -> None:
        K = f.products[0].args[0].width
        parts = []
        for p in f.products:
            x, w, bias, add = p.args
            if w.cols != K or p.out.width != w.rows:
                raise KernelError(
                    f"{w.name} is {w.rows} x {w.cols}: {x.name} has {K} values, {p.out.name} {p.out.width}"
                )
            act = self._act(product_input(p))
            at = self._array(bias, w.rows)
            address, row_bytes = self._weights.place(w)
            if row_bytes:
                self.tape.own(w.data)
            staged = self._is_staged(p.out, add)
            out, add = self._view(p.out), self._view(add)
            parts.append((FORMATS[w.type][0], address, row_bytes, w.rows, at, out, add, act, staged))
        self.tape.matmul(f.sync, K, parts)

    def _is_staged(self, out: Buffer, add: Buffer | None) -> bool:
        """Whether whole panels of 16 rows may not be written to `out` as they come."""
        root = out.root
        self._buffer(root)
        whole = padded(out.width)
        last = out.offset + out.width == root.width and out.offset + whole <= self._strides[root]
        overruns = whole != out.width and not last
        return overruns or (add is not None and Span.of(add).overlaps(Span.of(out)))

    def _add_heads(self, f: Fused) -> None:
        streams = []
        for s in f.streams:
            if s.x.width % s.head_dim:
                raise KernelError(f"{s.x.name} ({s.x.width} values) does not hold heads of {s.head_dim}")
            if s.angles is not None and 2 * len(s.angles.inv_freq) > s.head_dim:
                raise KernelError(f"{s.angles.name} rotates {2 * len(s.angles.inv_freq)} of {s.head_dim} values")
            if s.store and f.kv is not None and s.x.width != s.head_dim * f.kv.n_kv:
                raise KernelError(f"{s.x.name} holds {s.x.width // s.head_dim} heads, the cache {f.kv.n_kv}")
            angles = -1 if s.angles is None else self._angle(s.angles)
            norm = self._array(s.norm, s.head_dim)
            n_heads, layout = s.x.width // s.head_dim, _LAYOUTS[s.layout]
            streams.append((self._view(s.x), n_heads, s.head_dim, norm, s.eps, angles, layout, s.store))
        self.tape.heads(f.sync, -1 if f.kv is None else self._kv(f.kv), streams)

    def _add_attend(self, f: Fused) -> None:
        assert f.op is not None
        (q, kv), p, out = f.op.args, f.op.params, f.op.out
        n_head = p["n_head"]
        if n_head % kv.n_kv or n_head // kv.n_kv > MAX_GROUP or max(kv.head_dim_k, kv.head_dim_v) > MAX_HEAD_DIM:
            raise KernelError(f"attention of {n_head} heads over {kv} is beyond what the CPU set can do")
        if q.width != n_head * kv.head_dim_k or out.width != n_head * kv.head_dim_v:
            raise KernelError(f"attention of {n_head} heads over {kv} reads {q.width} and writes {out.width} values")
        heads, stride = self._partial
        self._partial = max(heads, n_head), max(stride, padded(kv.head_dim_v) + ALIGN)
        self.tape.attend(
            f.sync,
            self._view(out),
            self._view(q),
            self._kv(kv),
            n_head,
            p["scale"],
            p["window"],
            p["softcap"],
            self._emit(f),
        )

    def _add_elements(self, f: Fused) -> None:
        sub, number, act = _ELEMENTS[f.kind], 0.0, 0
        if f.op is None:
            self.tape.elements(f.sync, sub, None, self._view(f.x), None, 0.0, 0, self._emit(f))
            return
        out, args = f.op.out, f.op.args
        if any(a.width != out.width or a.rows != out.rows for a in args):
            raise KernelError(f"{f.kind} of {', '.join(f'{a.name} ({a.width})' for a in args)} into {out.width} values")
        if f.kind == "glu":
            act = _ACTIVATIONS[f.op.params["act"]]
        elif f.kind != "add":
            number = f.op.params["factor" if f.kind == "scale" else "cap"]
        y = self._view(args[1]) if len(args) > 1 else None
        self.tape.elements(f.sync, sub, self._view(out), self._view(args[0]), y, number, act, self._emit(f))

    def _add_select(self, f: Fused) -> None:
        assert f.op is not None
        out, x = f.op.out, f.op.args[0]
        if out.width != x.width or out.rows != "outputs" or x.rows != "tokens":
            raise KernelError(f"select of {x.name} into {out.name}: outputs of the same width are needed")
        self.tape.select(f.sync, self._view(out), self._view(x), self._emit(f))

    def _add_observe(self, f: Fused) -> None:
        assert f.op is not None
        x, sums = f.op.out, f.op.params["sums"]
        if sums.dtype != np.float64 or sums.shape != (x.width + 1,) or not sums.flags.c_contiguous:
            raise KernelError(f"observing {x.name} takes float64 ({x.width + 1},), not {sums.dtype} {sums.shape}")
        self.tape.observe(f.sync, self._view(x), self.tape.own(sums).ctypes.data)

    def _add_argmax(self, f: Fused) -> None:
        self.tape.argmax(f.sync, self._view(f.x))
