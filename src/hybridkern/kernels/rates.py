"""What this machine gives at most: memory read bandwidth and int8 products, for results to stand beside."""

from __future__ import annotations

import numpy as np

from . import _cpu
from .cpu.selection import chosen_name

READ_BYTES = 512 << 20  # far more than the last-level caches that a process gets
READ_ROUNDS = 6
INT8_SECONDS = 0.1
INT8_ROUNDS = 3


def read_rate(threads: int, nbytes: int = READ_BYTES) -> float:
    """Bytes per second that `threads` together read from memory, the best of some rounds."""
    memory = _cpu.Memory(nbytes, True)
    np.frombuffer(memory, np.uint8)[:] = 1  # pages that were never written share one page of zeros
    return max(_cpu.read_rate(memory, threads) for _ in range(READ_ROUNDS))


def int8_rate(threads: int, kernel_set: str | None = None) -> float:
    """int8 multiply-accumulates per second with the instructions of a kernel set (None: the one in use)."""
    names = [name for name, _, _ in _cpu.kernel_sets()]
    index = names.index(chosen_name(kernel_set))
    return max(_cpu.int8_rate(index, INT8_SECONDS, threads) for _ in range(INT8_ROUNDS))
