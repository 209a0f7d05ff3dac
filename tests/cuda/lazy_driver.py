"""The shim over a driver that puts everything off: what is queued happens when someone waits for it, and not before.

Copies from page-locked memory read it as late as they may, so a buffer that is filled again too early, an area that is
used twice, or memory that is freed under a copy shows. Device memory is host memory.
"""

from __future__ import annotations

import ctypes as c
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

INVALID = 1


class LazyDriver:
    """Put it in place of `driver._library()`. fail_...: the number of the launch or allocation that fails."""

    def __init__(self, fail_launch: int = 0, fail_alloc: int = 0, fail_host: int = 0) -> None:
        self.fail_launch, self.fail_alloc, self.fail_host = fail_launch, fail_alloc, fail_host
        self.lock = threading.RLock()
        self.streams: dict[int, list[tuple[Callable[[], Any], int, int]]] = {}  # with the host bytes read
        self.events: dict[int, tuple[int, int] | None] = {}  # stream, operations in front of it
        self.ended: dict[int, int] = {}  # operations of a stream that have happened
        self.memory: dict[int, Any] = {}
        self.locked: dict[int, int] = {}
        self.kept: dict[int, Any] = {}
        self.launches = self.late = self.allocs = self.host_allocs = 0
        self.wrong: list[str] = []
        self._next = 1 << 20

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("hk_cuda_"):
            raise AttributeError(name)
        made = getattr(self, "do_" + name.removeprefix("hk_cuda_"))

        def function(*args: Any) -> int:
            with self.lock:
                values = [getattr(a, "value", a) if not hasattr(a, "_obj") else a._obj for a in args]
                return made(*values) or 0

        return function

    def hk_cuda_error(self) -> bytes:
        return b"as the test asked"

    # what happens, and when

    def _until(self, stream: int, n: int) -> None:
        operations = self.streams[stream]
        while self.ended[stream] < n:
            operation = operations[self.ended[stream]]
            self.ended[stream] += 1
            operation[0]()

    def _queue(self, stream: int, what: Callable[[], Any], source: int = 0, nbytes: int = 0) -> None:
        self.streams[stream].append((what, source, nbytes))

    def _wait_for(self, event: int) -> None:
        at = self.events[event]
        if at is not None:
            self._until(*at)

    def _new(self) -> int:
        self._next += 1
        return self._next

    # the shim's functions

    def do_context(self, to: Any) -> None:
        to.value = 7

    def do_enter(self, context: int) -> None:
        assert context == 7

    def do_stream_create(self, to: Any) -> None:
        to.value = self._new()
        self.streams[to.value], self.ended[to.value] = [], 0

    def do_stream_destroy(self, stream: int) -> None:
        if self.ended[stream] < len(self.streams.pop(stream)):
            self.wrong.append("a stream went with work in it")

    def do_stream_wait(self, stream: int) -> None:
        self._until(stream, len(self.streams[stream]))

    def do_event_create(self, timed: int, to: Any) -> None:
        to.value = self._new()
        self.events[to.value] = None

    def do_event_destroy(self, event: int) -> None:
        del self.events[event]

    def do_event_record(self, event: int, stream: int) -> None:
        self.events[event] = stream, len(self.streams[stream])

    def do_event_wait(self, event: int) -> None:
        self._wait_for(event)

    def do_leave(self) -> None:
        pass

    def do_alloc(self, nbytes: int, to: Any) -> int:
        self.allocs += 1
        if self.allocs == self.fail_alloc:
            return INVALID
        memory = np.full(nbytes, 0xFF, np.uint8)
        to.value = memory.ctypes.data
        self.memory[to.value] = memory
        return 0

    def do_free(self, address: int) -> None:
        self.memory.pop(address)[:] = 0xEE

    def do_memory_info(self, free: Any, total: Any) -> None:
        free.value = total.value = 1 << 30

    def do_host_alloc(self, nbytes: int, to: Any) -> int:
        self.host_allocs += 1
        if self.host_allocs == self.fail_host:
            return INVALID
        memory = np.zeros(nbytes, np.uint8)
        to.value = memory.ctypes.data
        self.kept[to.value] = memory
        self.locked[to.value] = nbytes
        return 0

    def do_host_free(self, address: int) -> None:
        self._no_copy_of(address, "freed")
        del self.kept[address], self.locked[address]

    def _no_copy_of(self, address: int, what: str) -> None:
        nbytes = self.locked[address]
        for stream, operations in self.streams.items():
            for _, source, size in operations[self.ended[stream] :]:
                if size and source < address + nbytes and address < source + size:
                    self.wrong.append(f"memory is {what} while a copy reads it")

    def do_copy_to_device(self, to: int, source: int, nbytes: int, stream: int) -> int:
        if any(a <= source and source + nbytes <= a + n for a, n in self.locked.items()):
            self.late += 1
            self._queue(stream, lambda: c.memmove(to, source, nbytes), source, nbytes)
        else:  # pageable memory is read before the call returns
            data = c.string_at(source, nbytes)
            self._queue(stream, lambda: c.memmove(to, data, nbytes))
        return 0

    def do_launch_all(self, native: Any, n: int, stream: int) -> int:
        for one in native:
            raw, to, nbytes = np.frombuffer(c.string_at(one.args, one.args_bytes), np.uint64).tolist()
            self.launches += 1
            if self.launches == self.fail_launch:
                return INVALID

            def convert(raw: int = raw, to: int = to, nbytes: int = nbytes) -> None:
                c.memmove(to, c.string_at(raw, nbytes)[::-1], nbytes)

            self._queue(stream, convert)
        return 0
