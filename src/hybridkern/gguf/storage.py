"""The bytes of one file of tensor data: mapped, or read into anonymous memory; both page-aligned.

Either kind gives the same `view` and `address`. A view keeps its memory alive after the storage is closed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import threading

import numpy as np
import numpy.typing as npt

from hybridkern.errors import GGUFError, OutOfMemoryError

from .cursor import shown_path
from .guard import GuardedMap

PAGE = mmap.PAGESIZE
READ_CHUNK = 16 << 20


def lock_memory(path: str, address: int, nbytes: int) -> None:
    """mlock the pages of [address, address + nbytes); GGUFError says what the limit is and what to do about it."""
    have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    problem = ""
    if nbytes > have:
        problem = f"the machine has only {have} bytes of memory: drop --mlock"
    else:
        libc = ctypes.CDLL(None, use_errno=True)
        first = address // PAGE * PAGE
        if libc.mlock(ctypes.c_void_p(first), ctypes.c_size_t(address + nbytes - first)) == 0:
            return
        reason = os.strerror(ctypes.get_errno())
        soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        soft_text, hard_text = ("unlimited" if x == resource.RLIM_INFINITY else f"{x} bytes" for x in (soft, hard))
        problem = (
            f"{reason}; RLIMIT_MEMLOCK is {soft_text} (hard limit {hard_text}). Raise it (`ulimit -l "
            f"{-(-nbytes // 1024)}` or `ulimit -l unlimited`) or drop --mlock"
        )
    raise GGUFError(f"{shown_path(path)}: cannot lock {nbytes} bytes of tensor data in memory: {problem}")


class Storage:
    """Tensor data in bytes `start` to `size` of the open file `fd`; the file offset is what the methods count in."""

    def __init__(self, fd: int, path: str, start: int, size: int) -> None:
        self.fd = fd
        self.path = path
        self.start = start // PAGE * PAGE  # keeps the place within a page that bytes have in the file
        self.size = size
        self.locked = False
        self._bytes: npt.NDArray[np.uint8] | None = None  # of the file from self.start on; None once closed

    def lock(self, start: int) -> None:
        """Lock the data from byte `start` on in memory."""
        if start < self.size:
            lock_memory(self.path, self.address(start), self.size - start)
            self.locked = True

    def _memory(self) -> npt.NDArray[np.uint8]:
        memory = self._bytes
        if memory is None:  # closed by another thread since the caller looked
            raise GGUFError(f"{shown_path(self.path)}: the file is closed")
        return memory

    def address(self, offset: int) -> int:
        """The address of the file's byte `offset`."""
        return self._memory().ctypes.data + offset - self.start

    def view(self, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Read-only uint8 (nbytes,) from the file's byte `offset`, without a copy."""
        return self._memory()[offset - self.start : offset - self.start + nbytes]

    def load(self, offset: int, nbytes: int) -> None:
        """Make sure that the range holds the file's bytes; GGUFError where they cannot be read."""

    def prefetch(self, offset: int, nbytes: int) -> None:
        """Have the system begin to read a range of a mapped file."""

    def release(self, offset: int, nbytes: int) -> None:
        """Give the whole pages inside the range back to the system; the next load brings the bytes back."""

    def faulted(self) -> bool:
        """Whether a page of a mapped file was missing when it was touched."""
        return False

    def close(self) -> None:
        """Let go of the memory; it is unmapped when the last view of it dies."""
        self._bytes = None

    def _discard(self, memory: mmap.mmap, offset: int, nbytes: int) -> bool:
        first = -(-(offset - self.start) // PAGE) * PAGE
        last = (offset - self.start + nbytes) // PAGE * PAGE
        if self.locked or last <= first:
            return False
        memory.madvise(mmap.MADV_DONTNEED, first, last - first)
        return True


class MappedStorage(Storage):
    """The file mapped read-only: pages come from the page cache when they are touched."""

    def __init__(self, fd: int, path: str, start: int, size: int) -> None:
        super().__init__(fd, path, start, size)
        try:
            self._map: GuardedMap | None = GuardedMap(fd, size - self.start, access=mmap.ACCESS_READ, offset=self.start)
        except (OSError, ValueError) as e:
            problem = f"cannot be mapped into memory ({e}); without mmap (--no-mmap) it is read instead"
            raise GGUFError(f"{shown_path(path)}: {problem}") from e
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._map.guard(self._bytes.ctypes.data, len(self._map))

    def prefetch(self, offset: int, nbytes: int) -> None:
        first, last = (offset - self.start) // PAGE * PAGE, min(offset + nbytes, self.size) - self.start
        if (memory := self._map) is not None and last > first:
            memory.madvise(mmap.MADV_WILLNEED, first, last - first)

    def release(self, offset: int, nbytes: int) -> None:
        if (memory := self._map) is not None:
            self._discard(memory, offset, nbytes)

    def faulted(self) -> bool:
        memory = self._map
        return memory is not None and memory.faulted()

    def close(self) -> None:
        # Not mmap.close(), which refuses while views exist: the last reference unmaps, and takes the guard down first.
        super().close()
        self._map = None


class AnonymousStorage(Storage):
    """Anonymous memory, filled by reads of the file, tensor by tensor, on first use."""

    def __init__(self, fd: int, path: str, start: int, size: int) -> None:
        super().__init__(fd, path, start, size)
        try:
            memory = mmap.mmap(-1, size - self.start, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as e:
            problem = f"no {size - self.start} bytes of memory for its tensors ({e.strerror}); leave --no-mmap out"
            raise OutOfMemoryError(f"{shown_path(path)}: {problem}") from e
        self._map: mmap.mmap | None = memory
        self._bytes = np.frombuffer(memoryview(memory).toreadonly(), np.uint8)
        self._loaded: dict[int, int] = {}  # offset -> bytes
        self._lock = threading.Lock()

    def load(self, offset: int, nbytes: int) -> None:
        with self._lock:
            if self._loaded.get(offset, -1) >= nbytes or self._map is None:
                return
            with memoryview(self._map) as memory:
                at, end = offset, offset + nbytes
                while at < end:
                    into = memory[at - self.start : min(end, at + READ_CHUNK) - self.start]
                    try:
                        got = os.preadv(self.fd, [into], at)
                    except OSError as e:
                        problem = f"cannot be read at byte {at}: {e.strerror}"
                        raise GGUFError(f"{shown_path(self.path)}: {problem}") from e
                    if got == 0:
                        problem = f"was cut short from {self.size} to {at} bytes while in use"
                        raise GGUFError(f"{shown_path(self.path)}: the file {problem}")
                    at += got
            self._loaded[offset] = nbytes

    def release(self, offset: int, nbytes: int) -> None:
        with self._lock:
            if self._map is not None and self._discard(self._map, offset, nbytes):
                end = offset + nbytes
                self._loaded = {at: n for at, n in self._loaded.items() if at >= end or at + n <= offset}

    def close(self) -> None:
        super().close()
        with self._lock:
            self._map = None
