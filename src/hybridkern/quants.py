"""Weight formats of GGUF files, for NumPy users."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkern.errors import KernelError


def quantize(values: npt.ArrayLike, type: str, importance: Any = None, *, threads: int = 1) -> npt.NDArray[np.uint8]:
    """Floats (..., cols) -> the raw blocks of a format, uint8 (..., bytes of a row).

    type: a name in the format table, such as "Q4_K". importance: (cols,), how much an error in a column matters; None:
    all alike. Raises KernelError for an unknown format, rows that its blocks do not divide, NaN, infinity, and values
    that it cannot hold.
    """
    from hybridkern.kernels.quantizing import quantize_rows

    given = np.ascontiguousarray(values, np.float32)
    if given.ndim < 1 or given.size == 0:
        raise KernelError(f"values of shape {given.shape} have no elements")
    shape = math.prod(given.shape[:-1]), given.shape[-1]
    made = quantize_rows(given, "F32", type, shape, importance, threads=threads)
    return made.reshape(*given.shape[:-1], -1)


def dequantize(data: Any, type: str, shape: Sequence[int]) -> npt.NDArray[np.float32]:
    """Raw GGUF blocks -> float32 of `shape`, whose last dimension runs along the blocks.

    data: bytes or an array of the raw blocks, in C order; type: a name in the format table, such as "Q4_K". The
    values are, bit for bit, what the format's definition gives in float32. Raises KernelError for an unknown format, a
    last dimension that blocks do not divide, or a size that does not fit.
    """
    from hybridkern.kernels import direct
    from hybridkern.kernels.cpu.selection import chosen_name, table_named

    try:
        dims = tuple(operator.index(n) for n in shape)
    except TypeError:
        dims = ()
    if not dims or any(n < 0 for n in dims):
        raise KernelError(f"shape {shape!r} is not the shape of a tensor")
    index, block, _ = direct.format_of(type)
    if math.prod(dims) == 0:
        raise KernelError(f"{type} of shape {dims} has no elements")
    raw = direct.raw_blocks(data, type, math.prod(dims[:-1]), dims[-1])
    out = np.empty(dims, np.float32)
    table_named(chosen_name()).dequantize(index, raw.ctypes.data, out.size // block, out.ctypes.data)
    return out
