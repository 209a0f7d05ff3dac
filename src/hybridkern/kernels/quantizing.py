"""Rows of floats into the blocks of a format, on several threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkern.errors import ArgumentError, KernelError

from . import _quantize
from .cpu.selection import chosen_name, table_named
from .cpu.weights import FORMATS
from .direct import format_of, raw_blocks

FLOATS = ("F32", "F16", "BF16")
# What can be written. MXFP4 is only read.
WRITABLE = tuple(name for name in FORMATS if name != "MXFP4")
_PIECE = 1 << 19  # weights that a thread does at a time


class UnfitValue(KernelError):
    """A value that the format cannot hold. index: of the value; finite: False for NaN and infinity."""

    def __init__(self, index: int, finite: bool, problem: str) -> None:
        super().__init__(problem)
        self.index, self.finite = index, finite


def quantize_rows(
    data: Any,
    source: str,
    target: str,
    shape: tuple[int, int],
    importance: npt.NDArray[np.float32] | None = None,
    *,
    threads: int = 1,
    progress: Callable[[int], None] | None = None,
) -> npt.NDArray[np.uint8]:
    """Raw blocks of `source`, any format, for a (rows, cols) matrix -> uint8 [rows][bytes of a row] of `target`.

    importance: float32 (cols,), 0 or more: how much an error in a column matters; None: all alike. progress hears of
    the weights that have been done, from any thread. Raises KernelError for formats and shapes that do not fit, and
    UnfitValue for NaN, infinity, and what `target` cannot hold.
    """
    rows, cols = shape
    if target not in WRITABLE:
        raise KernelError(f"{target} cannot be written; there are {', '.join(WRITABLE)}")
    raw = raw_blocks(data, source, rows, cols)
    _, block, size = format_of(target)
    if cols % block:
        raise KernelError(f"{target} takes rows of whole blocks of {block} weights, not {cols}")
    weights = _checked(importance, cols)
    out = np.empty((rows, cols // block * size), np.uint8)
    step = max(1, _PIECE // cols)
    pieces = [(at, min(step, rows - at)) for at in range(0, rows, step)]

    def work(piece: tuple[int, int]) -> None:
        _quantize_piece(raw, source, target, rows, cols, weights, out, *piece)
        if progress is not None:
            progress(piece[1] * cols)

    if threads == 1 or len(pieces) == 1:
        for piece in pieces:
            work(piece)
    else:
        with ThreadPoolExecutor(threads) as pool:
            futures = [pool.submit(work, piece) for piece in pieces]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                for future in futures:
                    future.cancel()
                raise
    return out


def _checked(importance: npt.NDArray[np.float32] | None, cols: int) -> npt.NDArray[np.float32] | None:
    """The importance with a mean of 1, so that no sum of squares overflows or vanishes."""
    if importance is None:
        return None
    given = np.asarray(importance, np.float64)
    if given.shape != (cols,) or not np.isfinite(given).all() or (given < 0).any():
        raise ArgumentError(f"importance: {cols} finite numbers from 0 on are needed, not shape {given.shape}")
    mean = float(given.mean())
    return None if mean == 0 else np.ascontiguousarray(given / mean, np.float32)


def _quantize_piece(
    raw: npt.NDArray[np.uint8],
    source: str,
    target: str,
    rows: int,
    cols: int,
    importance: npt.NDArray[np.float32] | None,
    out: npt.NDArray[np.uint8],
    first: int,
    count: int,
) -> None:
    at = raw.reshape(rows, -1)[first : first + count]
    if source not in FLOATS:
        index, block, _ = format_of(source)
        values = np.empty((count, cols), np.float32)
        table_named(chosen_name()).dequantize(index, at.ctypes.data, values.size // block, values.ctypes.data)
        at, source = values, "F32"
    rc, fault = _quantize.rows(
        chosen_name(),
        FORMATS[source][0],
        FORMATS[target][0],
        at.ctypes.data,
        count,
        cols,
        0 if importance is None else importance.ctypes.data,
        out[first:].ctypes.data,
    )
    if rc == _quantize.OK:
        return
    row, col = first + fault // cols, fault % cols
    where = f"row {row}, column {col}"
    if rc == _quantize.NOT_FINITE:
        raise UnfitValue(first * cols + fault, False, f"NaN or infinity at {where}")
    raise UnfitValue(first * cols + fault, True, f"a value at {where}, or near it, is too large for {target}")
