"""The guard of mapped files: turns a fault on a page that the file no longer has into a flag instead of SIGBUS.

The handler is C (csrc/runtime/hk_sigbus.c), reached through the extension module. Without the extension the reader
still works and still notices by size that a file shrank, but touching a vanished page then ends the process.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any


def _calls() -> Any | None:
    """The module with guard_add(addr, len) -> slot, guard_remove(slot) and guard_faulted(slot) -> bool, if built."""
    try:
        from hybridkern.kernels import _cpu
    except ImportError:
        return None
    return _cpu if hasattr(_cpu, "guard_add") else None


class GuardedMap(mmap.mmap):
    """A mapping whose range can be guarded; the guard goes just before the mapping does.

    The guard must live as long as the last view of the mapping, which may outlive the file object: views hold a
    reference to the mapping, so its finaliser is the right place.
    """

    _slot = -1
    _faulted: Callable[[int], Any] | None = None
    _remove: Callable[[int], Any] | None = None

    def guard(self, address: int, size: int) -> None:
        """Guard the `size` bytes of this mapping, which begin at `address`. Does nothing without the extension."""
        calls = _calls()
        if calls is not None and self._slot < 0:
            slot = calls.guard_add(address, size)
            if slot >= 0:
                self._slot, self._faulted, self._remove = slot, calls.guard_faulted, calls.guard_remove

    def faulted(self) -> bool:
        """Whether a page of this mapping was missing when something touched it."""
        return self._faulted is not None and bool(self._faulted(self._slot))

    def __del__(self) -> None:
        if self._remove is not None:
            self._remove(self._slot)
            self._remove = self._faulted = None
