"""Weights on their way to the device: threads that copy and convert pieces of their own, each on a stream of its own.

A GPU copies at the speed of its bus only from page-locked memory, and locking the pages that weights lie in takes
longer than copying them. So each thread fills page-locked buffers, from a mapped file or from what was read of it, and
queues the copy and the conversion behind it; it waits only for the buffer that it is about to fill again. On an H200
with 16 cores eight threads bring a file of 4 GB from the page cache at 20 GB/s; registering its mapping with the driver
takes as long as that by itself.
"""

from __future__ import annotations

import ctypes as c
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .driver import Event, Kernels, Memory, Stream, call, current_context
from .launches import Launch

PIECE = 8 << 20  # bytes; smaller ones cost more in Python than they overlap
_THREADS = 8  # more do not copy faster
_SHARE = 32 << 20  # bytes that are worth a thread and its buffers
_BUFFERS = 2  # of a thread
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Piece:
    """At most PIECE bytes at `source` go to `to`, or, with `convert`, into an area of the device: the launch reads them
    there."""

    source: int
    nbytes: int
    to: int = 0
    convert: Callable[[int], Launch] | None = None


@dataclass(frozen=True)
class Uploaded:
    """What an upload did."""

    nbytes: int
    seconds: float
    threads: int

    def __str__(self) -> str:
        rate = self.nbytes / max(self.seconds, 1e-9) / 1e9
        return f"{self.nbytes / 1e9:.2f} GB in {self.seconds:.2f} s ({rate:.1f} GB/s, {self.threads} threads)"


def upload(kernels: Kernels, pieces: Sequence[Piece], progress: Progress | None = None) -> Uploaded:
    """Copy them all, in order of address, and return when they are there and converted. Called in the device's thread,
    which is where `progress` is called too."""
    start = time.perf_counter()
    work = _Work(sorted(pieces, key=lambda p: p.source))
    cores = len(os.sched_getaffinity(0))
    n = max(1, min(_THREADS, cores, work.total // _SHARE))
    size = max((p.nbytes for p in work.pieces), default=1)
    context = current_context()
    threads = [threading.Thread(target=_serve, args=(work, kernels, context, size)) for _ in range(n)]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            work.moved.wait(0.2)
            work.moved.clear()
            if progress is not None and work.done < work.total:
                progress(work.done, work.total)
    except BaseException:
        work.stop()
        raise
    finally:
        for thread in threads:
            thread.join()
    if work.errors:
        raise work.errors[0]
    if progress is not None:
        progress(work.total, work.total)
    return Uploaded(work.total, time.perf_counter() - start, n)


class _Work:
    """What is left to do, shared by the threads."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self.total, self.done = sum(p.nbytes for p in pieces), 0
        self.errors: list[BaseException] = []
        self.moved = threading.Event()  # something was done, or a thread has ended
        self._next = iter(pieces)
        self._lock = threading.Lock()

    def stop(self) -> None:
        """Nothing more is begun."""
        with self._lock:
            self._next = iter(())

    def __iter__(self) -> Iterator[Piece]:
        while True:
            with self._lock:
                piece = next(self._next, None)
            if piece is None:
                return
            yield piece
            with self._lock:
                self.done += piece.nbytes
            self.moved.set()


def _serve(work: _Work, kernels: Kernels, context: int, size: int) -> None:
    """A thread: takes pieces until there are none."""
    try:
        call("enter", context)
        try:
            _copy(work, kernels, size)
        finally:
            call("leave")
    except BaseException as error:
        work.errors.append(error)
        work.stop()
    finally:
        work.moved.set()


def _copy(work: _Work, kernels: Kernels, size: int) -> None:
    stream = Stream()
    buffers: list[_Buffer] = []
    try:
        for i, piece in enumerate(work):
            if i < _BUFFERS:
                buffers.append(_Buffer(size))
            buffer = buffers[i % _BUFFERS]
            buffer.wait()
            c.memmove(buffer.address, piece.source, piece.nbytes)
            to = piece.to if piece.convert is None else buffer.area(size)
            call("copy_to_device", to, c.c_void_p(buffer.address), piece.nbytes, stream.handle)
            if piece.convert is not None:
                stream.launch(kernels, [piece.convert(to)], early=False)
            buffer.used.record(stream)
    finally:
        # Whatever went wrong: nothing is given back while the device may still use it.
        stream.wait()
        for buffer in buffers:
            buffer.give_back()
        stream.destroy()


class _Buffer:
    """Page-locked memory, memory of the device to convert from, and the event behind their last use."""

    def __init__(self, nbytes: int) -> None:
        memory: Any = c.c_void_p()
        self.used = Event(timed=False)
        try:
            call("host_alloc", nbytes, c.byref(memory))
        except BaseException:
            self.used.destroy()
            raise
        self.address: int = memory.value
        self._area: Memory | None = None

    def wait(self) -> None:
        """Until it may be filled again; at once the first time."""
        call("event_wait", self.used.handle)

    def area(self, nbytes: int) -> int:
        """Where on the device a piece is converted from."""
        if self._area is None:
            self._area = Memory(nbytes, "uploading weights")
        return self._area.address

    def give_back(self) -> None:
        self.used.destroy()
        if self._area is not None:
            self._area.free()
        call("host_free", c.c_void_p(self.address))
