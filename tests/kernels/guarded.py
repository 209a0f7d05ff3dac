"""Memory for kernels between pages that nobody may touch: whoever reads or writes past its end, or in front, dies.

A buffer fits tightly against one of the two, the one behind unless a test asks for the one in front (`TIGHT`).
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)


TIGHT = {"front": False}


def guarded(n_bytes: int, fill: int = 0xFF, align: int = 64) -> np.ndarray:
    """uint8 [n_bytes], starting at a multiple of `align`: less than that lies between its end and the guard page, or
    nothing between the guard page in front and its start."""
    n_pages = max(1, -(-n_bytes // PAGE))
    memory = np.frombuffer(mmap.mmap(-1, (n_pages + 2) * PAGE), np.uint8)
    guard = (n_pages + 1) * PAGE
    for at in (0, guard):
        if _LIBC.mprotect(ctypes.c_void_p(memory.ctypes.data + at), ctypes.c_size_t(PAGE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    start = PAGE if TIGHT["front"] else guard - -(-n_bytes // align) * align
    memory[start:guard] = fill
    return memory[start : start + n_bytes]


def at_guard(a: np.ndarray, align: int = 64) -> np.ndarray:
    """The same values and strides of rows, in guarded memory; nothing lies behind the last row."""
    if a.ndim < 2 or a.flags.c_contiguous:
        out = guarded(a.nbytes, align=align).view(a.dtype).reshape(a.shape)
    else:
        rows, stride = len(a), a.strides[0]
        whole = guarded((rows - 1) * stride + a[0].nbytes, align=align)
        out = np.lib.stride_tricks.as_strided(whole.view(a.dtype), a.shape, a.strides)
    out[...] = a
    return out
