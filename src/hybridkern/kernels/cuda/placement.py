"""Where everything of a lowered model lies on the device: weights, vectors, buffers, the cache, the step slot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from hybridkern.errors import KernelError
from hybridkern.kernels.interface import Angles, Buffer, KVSpec, Vector, Weight
from hybridkern.kernels.streamed import Key, key_of

from . import cache_layout, launches, tiles
from .driver import Kernels, Memory, Stream
from .fusion import Form
from .layout import LAYOUTS, TILE, device_bytes, row_offset
from .upload import PIECE, Piece, Progress, Uploaded, upload

PAGE = 128
Sums = np.ndarray[Any, np.dtype[np.float64]]


def padded(n: int, multiple: int) -> int:
    """n rounded up to a multiple."""
    return -(-n // multiple) * multiple


def require_matrix(w: Weight) -> None:
    """Raise KernelError unless the set can hold the matrix."""
    if w.type not in LAYOUTS:
        raise KernelError(f"{w.name}: no CUDA kernel knows the format {w.type}; there are {', '.join(LAYOUTS)}")
    block = LAYOUTS[w.type].block
    if w.rows < 1 or w.cols < 1 or w.cols % block:
        raise KernelError(f"{w.name}: rows of {w.cols} weights of {w.type}; the CUDA set needs a multiple of {block}")
    if w.rows * w.cols // 32 >= 1 << 31:
        raise KernelError(f"{w.name}: {w.rows} x {w.cols} weights are more than the CUDA set can address")


class Placement:
    """Allocates on demand, each thing once, and frees all of it. nbytes: by purpose, to the byte."""

    def __init__(self, kernels: Kernels, stream: Stream, max_rows: int, max_outputs: int) -> None:
        self._kernels, self._stream = kernels, stream
        self.max_rows, self.max_outputs = max_rows, max_outputs
        self.nbytes: dict[str, int] = {}
        self.uploaded: Uploaded | None = None
        self._memory: list[Memory] = []
        self._weights: dict[Key, int] = {}
        self._vectors: dict[int, tuple[Any, int]] = {}
        self._buffers: dict[Buffer, tuple[int, int]] = {}
        self._forms: dict[tuple[Buffer, int, int, Form], tuple[int, int]] = {}
        self._angles: dict[Angles, tuple[int, int, int]] = {}
        self._scratch: dict[str, Memory] = {}
        self._sums: dict[int, tuple[Sums, int]] = {}

    def memory(self, nbytes: int, what: str) -> int:
        """New device memory."""
        made = Memory(padded(nbytes, 256), what)
        self._memory.append(made)
        self.nbytes[what] = self.nbytes.get(what, 0) + made.nbytes
        return made.address

    def free(self) -> None:
        """Give everything back."""
        while self._memory:
            self._memory.pop().free()

    # weights and vectors

    def upload_weights(self, weights: Iterable[Weight], progress: Progress | None = None) -> None:
        """Rows as the file has them go to the device piece by piece and are converted there; see `uploaded`."""
        distinct = {key_of(w): w for w in weights}
        for w in distinct.values():
            require_matrix(w)
        kept: list[np.ndarray[Any, Any]] = []  # copies that the device reads
        # All in one piece: a driver gives whole multiples of 2 MiB, which for each matrix would waste 1 on average.
        sizes = [padded(device_bytes(w.type, w.rows, w.cols), 256) for w in distinct.values()]
        at = self.memory(sum(sizes), "weights") if sizes else 0
        pieces: list[Piece] = []
        for w, size in zip(distinct.values(), sizes, strict=True):
            pieces += self._pieces(w, at, kept)
            at += size
        self.uploaded = upload(self._kernels, pieces, progress)

    def _pieces(self, w: Weight, base: int, kept: list[np.ndarray[Any, Any]]) -> Iterator[Piece]:
        self._weights[key_of(w)] = base
        data = np.ascontiguousarray(w.data)
        kept.append(data)
        row = data.shape[1]
        step = max(TILE, PIECE // row // TILE * TILE)
        for first in range(0, w.rows, step):
            rows = min(step, w.rows - first)
            source, nbytes = data.ctypes.data + first * row, rows * row
            if LAYOUTS[w.type].is_float:
                yield Piece(source, nbytes, to=base + first * row)
                continue
            at = base + row_offset(w.type, first, w.cols)
            yield Piece(source, nbytes, convert=partial(_conversion, w, at, rows))

    def place_weights(self, addresses: Mapping[Key, int]) -> None:
        """Of weights that come to the device by themselves (stream.py), by `key_of`."""
        self._weights.update(addresses)

    def address(self, w: Weight) -> int:
        """Of an uploaded weight, or of one that comes by itself."""
        return self._weights[key_of(w)]

    def vector(self, v: Vector | None, width: int) -> int:
        """Address of a float32 vector, 0 for none."""
        if v is None:
            return 0
        if id(v) not in self._vectors:
            data = np.ascontiguousarray(v.data, np.float32)
            if data.shape != (width,):
                raise KernelError(f"{v.name} has the shape {data.shape}, but {width} values are needed")
            at = self.array(data, "vectors")
            self._vectors[id(v)] = (v, at)
        return self._vectors[id(v)][1]

    def array(self, data: np.ndarray[Any, Any], what: str) -> int:
        """A copy of an array."""
        at = self.memory(data.nbytes, what)
        self._stream.upload(at, data)
        self._stream.wait()
        return at

    # buffers

    def shared_scratch(self, name: str, nbytes: int) -> int:
        """Zeroed memory that launches of one kind share, as they follow each other. It does not move: the first caller
        must ask for the most."""
        if name not in self._scratch:
            made = self._scratch[name] = Memory(padded(nbytes, 256), name)
            self._memory.append(made)
            self.nbytes["buffers"] = self.nbytes.get("buffers", 0) + made.nbytes
            self._stream.fill(made.address, 0, made.nbytes)
            self._stream.wait()
        if nbytes > self._scratch[name].nbytes:
            raise KernelError(
                f"scratch memory for {name} holds {self._scratch[name].nbytes} bytes, {nbytes} are needed"
            )
        return self._scratch[name].address

    def buffer(self, b: Buffer) -> tuple[int, int]:
        """Address of a buffer's or view's first value, and the values from row to row."""
        root = b.root
        if root not in self._buffers:
            stride = padded(root.width, 32)
            rows = self.max_rows if root.rows == "tokens" else self.max_outputs
            self._buffers[root] = self.memory(rows * stride * 4, "buffers"), stride
        base, stride = self._buffers[root]
        return base + 4 * b.offset, stride

    def form(self, b: Buffer, form: Form) -> tuple[int, int]:
        """A buffer as halves and scales."""
        key = (b.root, b.offset, b.width, form)
        if key not in self._forms:
            rows = self.max_rows if b.rows == "tokens" else self.max_outputs
            sizes = tiles.half_sizes(rows, b.width)[1], rows * 4
            self._forms[key] = self.memory(sizes[0], "buffers"), self.memory(sizes[1], "buffers")
        return self._forms[key]

    def sums(self, x: Buffer, to: Sums) -> int:
        """Zeroed sums of the squares of x's columns and the number of rows; `collect` adds them to the array."""
        if to.dtype != np.float64 or to.shape != (x.width + 1,):
            raise KernelError(f"observing {x.name} takes float64 ({x.width + 1},), not {to.dtype} {to.shape}")
        if id(to) not in self._sums:
            self._sums[id(to)] = to, self.array(np.zeros(to.shape), "observed sums")
        return self._sums[id(to)][1]

    def collect(self, stream: Stream) -> None:
        """Adds the sums to their arrays, and begins anew; behind what was queued in the stream."""
        for to, at in self._sums.values():
            here = np.empty_like(to)
            stream.download(here, at)
            stream.fill(at, 0, here.nbytes)
            stream.wait()
            to += here

    def angles(self, a: Angles) -> tuple[int, int, int]:
        """inv_freq, inv_freq_long (or 0), and the table of this step."""
        if a not in self._angles:
            freq = self.array(np.ascontiguousarray(a.inv_freq, np.float64), "vectors")
            long = 0
            if a.inv_freq_long is not None:
                long = self.array(np.ascontiguousarray(a.inv_freq_long, np.float64), "vectors")
            self._angles[a] = freq, long, self.memory(self.max_rows * len(a.inv_freq) * 8, "buffers")
        return self._angles[a]


def _conversion(w: Weight, to: int, rows: int, raw: int) -> launches.Launch:
    return launches.convert(w.type, raw, to, rows, w.cols)


class DeviceCache:
    """Pages of 128 tokens for all blocks, on the device. page_bytes and offsets are the same for every page."""

    def __init__(self, placement: Placement, specs: Iterable[KVSpec], kv_type: str, n_pages: int) -> None:
        if kv_type not in cache_layout.KV_TYPES:
            raise KernelError(
                f"the CUDA set has no cache of type {kv_type}; there are {', '.join(cache_layout.KV_TYPES)}"
            )
        self.kv_type, self.n_pages = kv_type, n_pages
        self._offsets: dict[int, int] = {}
        at = 0
        for s in specs:
            for dim in (s.head_dim_k, s.head_dim_v):
                if dim % (8 if kv_type == "f16" else 32) or dim > 256:
                    raise KernelError(f"block {s.block}: a cache of type {kv_type} cannot hold heads of {dim} values")
            self._offsets[s.block] = at
            at += s.n_kv * cache_layout.cache_head_bytes(kv_type, s.head_dim_k, s.head_dim_v)
        self.page_bytes = padded(at, 256)
        self.address = placement.memory(self.page_bytes * n_pages, "KV cache")

    def struct(self, s: KVSpec) -> launches.Struct:
        """The argument of kernels for a block."""
        at = (self.address, self.page_bytes, self._offsets[s.block], s.n_kv, s.head_dim_k, s.head_dim_v)
        return cache_layout.cache_struct(*at, self.kv_type)
