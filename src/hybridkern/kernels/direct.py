"""The CPU kernels for NumPy users: packed matrices, products, quantised activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkern.errors import ArgumentError, KernelError

from . import _cpu
from .cpu.selection import chosen_name, runnable, table_named
from .cpu.weights import FORMATS, PANEL

Floats = npt.NDArray[np.float32]
_KINDS = {"Q8_32": (1, 32)}
_LINE = 16  # floats per cache line


def available() -> list[str]:
    """Kernel sets that this CPU can run, in ascending order."""
    return runnable()


def active() -> str:
    """The kernel set in use: the best one, or what HYBRIDKERN_CPU names. Raises KernelError where that cannot run."""
    return chosen_name()


def format_of(type: str) -> tuple[int, int, int]:
    """(index, weights per block, bytes per block) of a format name. Raises KernelError, listing the names."""
    if type not in FORMATS:
        raise KernelError(f"no kernel knows the format {type!r}; there are {', '.join(FORMATS)}")
    index, _, block, size, _ = FORMATS[type]
    return index, block, size


def raw_blocks(data: Any, type: str, rows: int, cols: int) -> npt.NDArray[np.uint8]:
    """`data` (bytes or an array) as contiguous uint8 of rows x cols weights. Raises KernelError naming both sizes."""
    _, block, size = format_of(type)
    if rows < 1 or cols < 1 or cols % block:
        raise KernelError(f"{type} {rows} x {cols}: rows must be whole blocks of {block} weights, and not empty")
    raw = np.frombuffer(data, np.uint8) if isinstance(data, (bytes, bytearray, memoryview)) else np.asarray(data)
    raw = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
    want = rows * (cols // block) * size
    if raw.size != want:
        raise KernelError(f"{type} {rows} x {cols} takes {want} bytes, but there are {raw.size}")
    return raw


@dataclass(frozen=True, eq=False)
class PackedMatrix:
    """A matrix of `shape` (rows, cols) in panels of 16 rows. `memory`: the panels, 64-byte aligned."""

    type: str
    shape: tuple[int, int]
    memory: _cpu.Memory

    @property
    def nbytes(self) -> int:
        """Bytes of the panels."""
        return self.memory.size


@dataclass(frozen=True, eq=False)
class QuantizedActivations:
    """codes int8 [n][K], scales float32 [n][K / block], sums int16 [n][K / 16] (sums of 16 codes)."""

    kind: str
    codes: npt.NDArray[np.int8]
    scales: Floats
    sums: npt.NDArray[np.int16]


def _threads(threads: int) -> int:
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ArgumentError(f"threads = {threads!r}: a positive integer is needed")
    return threads


def pack(data: Any, type: str, shape: tuple[int, int], *, threads: int = 1) -> PackedMatrix:
    """Pack raw GGUF blocks (bytes or uint8) of a (rows, cols) matrix."""
    rows, cols = _shape2(shape)
    raw = raw_blocks(data, type, rows, cols)
    index, block, size = format_of(type)
    memory = _cpu.Memory(-(-rows // PANEL) * _cpu.panel_bytes(index, cols), True)
    _cpu.pack(index, raw.ctypes.data, cols // block * size, rows, cols, memory.address, _threads(threads))
    return PackedMatrix(type, (rows, cols), memory)


def matvec(W: PackedMatrix, x: npt.ArrayLike, *, threads: int = 1) -> Floats:
    """W @ x: x (cols,) -> float32 (rows,)."""
    vector = np.asarray(x, np.float32)
    if vector.ndim != 1:
        raise KernelError(f"matvec takes a vector of {W.shape[1]} values, not an array of shape {vector.shape}")
    return matmul(W, vector[None], threads=threads)[0]


def matmul(W: PackedMatrix, X: npt.ArrayLike, *, threads: int = 1) -> Floats:
    """X @ W.T: X (n, cols) -> float32 (n, rows). Quantised formats round X to int8 as a model's steps do."""
    rows, cols = W.shape
    given = np.asarray(X, np.float32)
    if given.ndim != 2 or given.shape[1] != cols:
        raise KernelError(f"{W.type} {rows} x {cols} takes activations of shape (n, {cols}), not {given.shape}")
    n = given.shape[0]
    if n == 0:
        return np.empty((0, rows), np.float32)
    x, x_memory = _aligned(n, cols)
    x[:] = given
    out, out_memory = _aligned(n, rows)
    table = table_named(chosen_name())
    table.matmul(
        FORMATS[W.type][0],
        W.memory.address,
        rows,
        cols,
        x_memory.address,
        x.strides[0] // 4,
        n,
        out_memory.address,
        out.strides[0] // 4,
        _threads(threads),
    )
    return out


def quantize_activations(X: npt.ArrayLike, kind: str) -> QuantizedActivations:
    """Round float32 (n, K) to int8, block by block; kind: "Q8_32", one scale per 32 values."""
    if kind not in _KINDS:
        raise KernelError(f"activations are quantised as {' or '.join(_KINDS)}, not {kind!r}")
    code, block = _KINDS[kind]
    given = np.asarray(X, np.float32)
    if given.ndim != 2 or given.shape[1] % block or given.shape[1] == 0:
        raise KernelError(f"{kind} takes shape (n, K) with K a multiple of {block}, not {given.shape}")
    n, K = given.shape
    codes, scales = np.empty((n, K), np.int8), np.empty((n, K // block), np.float32)
    sums = np.empty((n, K // 16), np.int16)
    x, memory = _aligned(1, K)
    table = table_named(chosen_name())
    for i in range(n):
        x[0] = given[i]
        at = codes[i].ctypes.data, scales[i].ctypes.data, sums[i].ctypes.data
        table.quantize(code, memory.address, 1, K, *at)
    return QuantizedActivations(kind, codes, scales, sums)


def _shape2(shape: Any) -> tuple[int, int]:
    if len(shape) != 2 or not all(isinstance(n, (int, np.integer)) for n in shape):
        raise KernelError(f"a matrix has a shape of (rows, cols), not {shape!r}")
    return int(shape[0]), int(shape[1])


def _aligned(n: int, width: int) -> tuple[Floats, _cpu.Memory]:
    """Float32 [n][width] whose rows begin on cache lines and are padded to whole ones."""
    stride = -(-width // _LINE) * _LINE
    memory = _cpu.Memory(n * stride * 4)
    return np.frombuffer(memory, np.float32, n * stride).reshape(n, stride)[:, :width], memory
