"""Page-locked buffers that threads fill from main memory which a GPU cannot read where it lies."""

from __future__ import annotations

import ctypes as c
import os
from contextlib import suppress
from functools import cache
from typing import Any

from hybridkern.errors import KernelError, OutOfMemoryError
from hybridkern.kernels import _cpu

from .driver import Stream, _made, call
from .ring import Fill

THREADS = 8  # at most; more do not copy faster


class _Part(c.Structure):
    _fields_ = [("source", c.c_void_p), ("to", c.c_void_p), ("nbytes", c.c_int64)]


class _Job(c.Structure):
    _fields_ = [("stage", c.c_void_p), ("parts", c.c_void_p), ("n", c.c_int64)]


@cache
def _library() -> Any:
    library = c.CDLL(_cpu.__file__)
    library.hk_stage_create.restype = c.c_void_p
    return library


class Locked:
    """n buffers of nbytes each, and the threads that fill them (csrc/runtime/hk_stage.h). keep: owners of the memory
    that they read. Graphs that hold a fill end before `close`."""

    def __init__(self, n: int, nbytes: int, keep: Any = None) -> None:
        self._buffers: list[int] = []
        self._jobs: list[Any] = []
        self._keep = keep
        self._stage: int | None = None
        self.n_threads = max(1, min(THREADS, len(os.sched_getaffinity(0))))
        self.nbytes = n * nbytes
        try:
            for _ in range(n):
                self._buffers.append(_made("host_alloc", nbytes))
            self._stage = _library().hk_stage_create(c.c_int(self.n_threads))
            if self._stage is None:
                raise OutOfMemoryError("no thread can be started to copy weights to page-locked memory")
        except BaseException:
            self.close()
            raise

    def fill(self, stream: Stream, buffer: int, fill: Fill) -> list[tuple[int, int, int]]:
        """Queue that a buffer is filled; its copies, with the buffer as their source."""
        base = self._buffers[buffer]
        parts = (_Part * len(fill.copies))(*((source, base + start, n) for source, start, n in fill.copies))
        job = _Job(self._stage, c.addressof(parts), len(parts))
        self._jobs.append((parts, job))  # as long as the graph
        call("stream_call", stream.handle, c.cast(_library().hk_stage_run, c.c_void_p), c.c_void_p(c.addressof(job)))
        return [(base + start, start, n) for _, start, n in fill.copies]

    @property
    def jobs(self) -> int:
        """Fills that are kept, as graphs may run them again."""
        return len(self._jobs)

    def forget(self, jobs: int) -> None:
        """Keeps the first so many; the others are over, and in no graph."""
        del self._jobs[jobs:]

    def close(self) -> None:
        """A second call does nothing."""
        if self._stage is not None:
            _library().hk_stage_destroy(c.c_void_p(self._stage))
            self._stage = None
        while self._buffers:
            with suppress(KernelError):  # a context that a failed step has broken accepts nothing any more
                call("host_free", c.c_void_p(self._buffers.pop()))
        self._jobs, self._keep = [], None
