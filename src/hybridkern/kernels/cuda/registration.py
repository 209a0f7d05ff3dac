"""Main memory that GPUs read by themselves: its pages are locked, as they lie, with what they hold."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from hybridkern.errors import KernelError

from .driver import attribute, call

PAGE = 4096
_READ_ONLY_SUPPORTED = 113  # attribute number of the driver
Range = tuple[int, int, bool]  # first byte, end, mapped for reading only


def page_ranges(parts: Iterable[tuple[int, int, bool]]) -> list[Range]:
    """Whole pages that hold the parts (address, bytes, read only), none twice, neighbours of a kind as one."""
    made: list[Range] = []
    for at, nbytes, read_only in sorted(parts):
        first, end = at // PAGE * PAGE, -(-(at + nbytes) // PAGE) * PAGE
        if made and made[-1][1] > first:
            first = made[-1][1]
        if first >= end:
            continue
        if made and made[-1][1] == first and made[-1][2] == read_only:
            made[-1] = made[-1][0], end, read_only
        else:
            made.append((first, end, read_only))
    return made


class Registered:
    """Made in a thread in which a context is current; every GPU of the process may then read the memory. Raises
    KernelError or OutOfMemoryError, with nothing registered, where the system does not allow it. keep: owners of the
    memory."""

    def __init__(self, parts: Iterable[tuple[int, int, bool]], keep: Any = None) -> None:
        self._ranges: list[Range] = []
        self._keep = keep
        self.nbytes = 0
        may = bool(attribute(_READ_ONLY_SUPPORTED))  # else the system refuses what is mapped so
        try:
            for first, end, read_only in page_ranges(parts):
                call("host_register", c.c_void_p(first), end - first, c.c_int(read_only and may))
                self._ranges.append((first, end, read_only))
                self.nbytes += end - first
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Nothing may be reading it any more. A second call does nothing."""
        while self._ranges:
            with suppress(KernelError):  # a context that a failed step has broken accepts nothing any more
                call("host_unregister", c.c_void_p(self._ranges.pop()[0]))
        self.nbytes, self._keep = 0, None
