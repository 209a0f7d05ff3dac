"""The weights of the CPU set: packed into panels of 16 rows in one block of anonymous memory, or left as raw rows.

Packing goes through the file in slices. The slice after the one that is packed is already being read, and what has been
packed is given back, so that a weight is in memory once, but for one slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from hybridkern.errors import KernelError
from hybridkern.kernels import _cpu
from hybridkern.kernels.interface import Weight
from hybridkern.kernels.streamed import HostSource, Key, key_of

Progress = Callable[[int, int], None]
FORMATS = _cpu.formats()
ACT_F32, ACT_Q8_32, ACT_Q8_PAIR = range(3)
PANEL = 16
SLICE_BYTES = 32 << 20


class Source(Protocol):
    """The file that weights come from; a weight's name is its tensor's (hybridkern.gguf.GGUFFile)."""

    @property
    def mmap(self) -> bool:
        """Whether what was given back can be read again, at any time and by anybody."""
        ...

    def prefetch(self, name: str, start: int, nbytes: int) -> None: ...

    def release(self, name: str, start: int, nbytes: int) -> None: ...


def activation_kind(type_name: str, precise: bool = False) -> int:
    """How the input of a product with this format is quantised. precise: in two parts where it would be int8."""
    kind = FORMATS[type_name][4]
    return ACT_Q8_PAIR if precise and kind == ACT_Q8_32 else int(kind)


def require_matrix(w: Weight) -> None:
    """Raise KernelError unless the raw rows are what type and shape say."""
    if w.type not in FORMATS:
        raise KernelError(f"{w.name}: no kernel knows the format {w.type}; there are {', '.join(FORMATS)}")
    _, _, block, size, _ = FORMATS[w.type]
    if w.rows < 1 or w.cols < 1 or w.cols % block:
        raise KernelError(f"{w.name}: rows of {w.cols} weights cannot be {w.type}, whose blocks hold {block}")
    want = (w.rows, w.cols // block * size)
    if w.data.shape != want or w.data.dtype != "uint8" or w.data.strides[1] != 1:
        raise KernelError(f"{w.name}: {w.type} {w.rows} x {w.cols} is uint8 {want}, not {w.data.dtype} {w.data.shape}")


def panel_bytes(w: Weight) -> int:
    """Bytes of 16 packed rows."""
    return int(_cpu.panel_bytes(FORMATS[w.type][0], w.cols))


def packed_bytes(w: Weight) -> int:
    """Bytes of the packed matrix, a multiple of 64."""
    return -(-(-(-w.rows // PANEL) * panel_bytes(w)) // 64) * 64


class CpuWeights:
    """Every distinct matrix once, at `place(w)`; packed ones are freed with the object, raw ones belong to the file.

    weights: of products. tables: those of them whose raw rows are needed as well. repack: False leaves as raw rows
    whatever can be multiplied so.
    """

    def __init__(
        self,
        weights: Iterable[Weight],
        threads: int,
        progress: Progress | None = None,
        *,
        tables: Iterable[Weight] = (),
        repack: bool = True,
        source: Source | None = None,
    ) -> None:
        self._offsets: dict[Key, int | None] = {}
        self._elsewhere: dict[Key, HostSource] = {}
        self.raw_bytes = 0
        kept = {key_of(w) for w in tables}
        todo: list[tuple[Weight, int]] = []
        total = 0
        for w in weights:
            require_matrix(w)
            key = key_of(w)
            if key in self._offsets:
                continue
            # A table that was read instead of mapped would be in memory twice.
            twice = key in kept and source is not None and not source.mmap
            if (twice or not repack) and panel_bytes(w) <= _cpu.PANEL_SCRATCH:
                self._offsets[key] = None
                self.raw_bytes += w.rows * w.data.strides[0]
                continue
            self._offsets[key] = total
            todo.append((w, total))
            total += packed_bytes(w)
        self.memory = _cpu.Memory(total, True)
        slices = [(w, at, r0, r1) for w, at in todo for r0, r1 in _slices(w)]
        done = 0
        for i, (w, at, r0, r1) in enumerate(slices):
            row_bytes, last = w.data.strides[0], r1 == w.rows
            if source is not None and i + 1 < len(slices):
                ahead, _, a0, a1 = slices[i + 1]
                source.prefetch(ahead.name, a0 * row_bytes_of(ahead), (a1 - a0) * row_bytes_of(ahead))
            first = self.memory.address + at + r0 // PANEL * panel_bytes(w)
            raw = w.data.ctypes.data + r0 * row_bytes
            _cpu.pack(FORMATS[w.type][0], raw, row_bytes, r1 - r0, w.cols, first, threads)
            if source is not None and not (key_of(w) in kept and not source.mmap):
                source.release(w.name, r0 * row_bytes, (r1 - r0) * row_bytes)
            done += packed_bytes(w) - (r0 // PANEL * panel_bytes(w)) if last else (r1 - r0) // PANEL * panel_bytes(w)
            if progress is not None:
                progress(done, total)

    @property
    def nbytes(self) -> int:
        """Bytes of all packed matrices."""
        return self.memory.size

    def place(self, w: Weight) -> tuple[int, int]:
        """(where the panels of a weight begin, 0), or (where its raw rows begin, bytes per row)."""
        key = key_of(w)
        if key not in self._offsets:
            lies = self._elsewhere[key]
            return lies.address, 0 if lies.packed else row_bytes_of(w)
        offset = self._offsets[key]
        if offset is None:
            return w.data.ctypes.data, row_bytes_of(w)
        return self.memory.address + offset, 0

    def source(self, w: Weight) -> HostSource:
        """A matrix as another device may read it."""
        address, row_bytes = self.place(w)
        return HostSource(address, not row_bytes, bool(row_bytes) and not w.data.flags.writeable, self)

    def read_elsewhere(self, sources: Mapping[Key, HostSource]) -> None:
        """Matrices that are multiplied where another set has them."""
        self._elsewhere.update(sources)


def row_bytes_of(w: Weight) -> int:
    """Bytes from one raw row to the next."""
    return int(w.data.strides[0])


def _slices(w: Weight) -> Iterator[tuple[int, int]]:
    """Rows [r0, r1) of whole panels."""
    step = max(1, SLICE_BYTES // (PANEL * row_bytes_of(w))) * PANEL
    for r0 in range(0, w.rows, step):
        yield r0, min(r0 + step, w.rows)
