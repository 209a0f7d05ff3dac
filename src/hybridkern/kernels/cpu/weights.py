"""Packs weights into panels of 16 rows, in parallel, into one block of anonymous memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hybridkern.errors import KernelError
from hybridkern.kernels import _cpu
from hybridkern.kernels.interface import Weight

Progress = Callable[[int, int], None]
FORMATS = _cpu.formats()
ACT_F32, ACT_Q8_32 = range(2)
PANEL = 16


def activation_kind(type_name: str) -> int:
    """How the input of a product with this format is quantised."""
    return FORMATS[type_name][4]


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


def packed_bytes(w: Weight) -> int:
    """Bytes of the packed matrix, a multiple of 64."""
    panels = -(-w.rows // PANEL)
    return -(-panels * _cpu.panel_bytes(FORMATS[w.type][0], w.cols) // 64) * 64


class PackedWeights:
    """Every distinct matrix once, at the address `address(w)`; the memory is freed with the object."""

    def __init__(self, weights: Iterable[Weight], threads: int, progress: Progress | None = None) -> None:
        self._offsets: dict[tuple[int, str, int, int], int] = {}
        todo: list[tuple[Weight, int]] = []
        total = 0
        for w in weights:
            require_matrix(w)
            if self._key(w) not in self._offsets:
                self._offsets[self._key(w)] = total
                todo.append((w, total))
                total += packed_bytes(w)
        self.memory = _cpu.Memory(total, True)
        done = 0
        for w, offset in todo:
            raw, row_bytes = w.data.ctypes.data, w.data.strides[0]
            _cpu.pack(FORMATS[w.type][0], raw, row_bytes, w.rows, w.cols, self.memory.address + offset, threads)
            done += packed_bytes(w)
            if progress is not None:
                progress(done, total)

    @staticmethod
    def _key(w: Weight) -> tuple[int, str, int, int]:
        return w.data.ctypes.data, w.type, w.rows, w.cols

    @property
    def nbytes(self) -> int:
        """Bytes of all packed matrices."""
        return self.memory.size

    def address(self, w: Weight) -> int:
        """Where the panels of a weight begin."""
        return self.memory.address + self._offsets[self._key(w)]
