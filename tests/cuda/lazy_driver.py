"""The shim over a driver that puts everything off: what is queued happens when someone waits for it, and not before.

Copies from page-locked memory read it as late as they may, so a buffer that is filled again too early, an area that is
used twice, or memory that is freed under a copy shows. Device memory is host memory. The operations of a graph happen
in an order of chance, which keeps to nothing but the edges that were captured.
"""

from __future__ import annotations

import ctypes as c
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

INVALID = 1


class Capture:
    """Nodes of a graph in the making: what happens, and behind which others; `ends`: the last ones of each stream."""

    def __init__(self, origin: int) -> None:
        self.origin = origin
        self.nodes: list[tuple[Callable[[], Any], frozenset[int]]] = []
        self.ends: dict[int, frozenset[int]] = {origin: frozenset()}
        self.events: dict[int, frozenset[int]] = {}

    def add(self, stream: int, what: Callable[[], Any]) -> None:
        self.nodes.append((what, self.ends[stream]))
        self.ends[stream] = frozenset([len(self.nodes) - 1])

    def is_joined(self) -> bool:
        """Whether the origin waits for everything."""
        seen: set[int] = set()
        todo = list(self.ends[self.origin])
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                todo += self.nodes[node][1]
        return len(seen) == len(self.nodes)


class LazyDriver:
    """Put it in place of `driver._library()`. fail_...: the number of the launch, allocation or registration that
    fails; refuse: no memory can be registered. seed: of the order in graphs. kernels: what a kernel does, by the number
    that its function has, given the bytes of its argument."""

    def __init__(
        self, fail_launch: int = 0, fail_alloc: int = 0, fail_host: int = 0, fail_register: int = 0, seed: int = 0
    ) -> None:
        self.fail_launch, self.fail_alloc, self.fail_host = fail_launch, fail_alloc, fail_host
        self.fail_register, self.registrations = fail_register, 0
        self.random = random.Random(seed)
        self.kernels: dict[int, Callable[[bytes], Callable[[], Any]]] = {}
        self.registered: dict[int, tuple[int, bool]] = {}
        self.capture: Capture | None = None
        self.graphs: dict[int, Capture] = {}
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
        if self.capture is not None and stream in self.capture.ends:
            self.capture.add(stream, what)
        else:
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

    def do_stream_create_urgent(self, to: Any) -> None:
        self.do_stream_create(to)

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
        if self.capture is not None and stream in self.capture.ends:
            self.capture.events[event] = self.capture.ends[stream]
        else:
            self.events[event] = stream, len(self.streams[stream])

    def do_stream_after(self, stream: int, event: int) -> None:
        assert self.capture is not None, "only captures need it"
        self.capture.ends[stream] = self.capture.ends.get(stream, frozenset()) | self.capture.events[event]

    def do_stream_call(self, stream: int, function: int, argument: int) -> None:
        self._queue(stream, lambda: c.CFUNCTYPE(None, c.c_void_p)(function)(argument))

    # graphs

    def do_capture_begin(self, stream: int) -> None:
        assert self.capture is None
        self.capture = Capture(stream)

    def do_capture_end(self, stream: int, to: Any) -> int:
        made, self.capture = self.capture, None
        assert made is not None and made.origin == stream
        to.value = 0
        if not made.is_joined():
            return INVALID
        to.value = self._new()
        self.graphs[to.value] = made
        return 0

    def do_graph_launch(self, graph: int, stream: int) -> None:
        self._queue(stream, lambda: self._replay(self.graphs[graph]))

    def do_graph_destroy(self, graph: int) -> None:
        del self.graphs[graph]

    def _replay(self, graph: Capture) -> None:
        """Favours some nodes by chance, so that one branch runs far ahead of another as well as beside it."""
        liking = [self.random.random() for _ in range(len(graph.nodes))]
        by = self.random.choice([lambda i: liking[i], lambda i: i, lambda i: -i])
        left, done = set(range(len(graph.nodes))), set()
        while left:
            node = min((i for i in left if graph.nodes[i][1] <= done), key=by)
            graph.nodes[node][0]()
            left.remove(node)
            done.add(node)

    # registration

    def do_device_attribute(self, number: int, to: Any) -> None:
        to.value = 1

    def do_host_register(self, address: int, nbytes: int, read_only: int) -> int:
        self.registrations += 1
        if self.registrations == self.fail_register or self.fail_register < 0:
            return INVALID
        if any(a < address + nbytes and address < a + n for a, (n, _) in self.registered.items()):
            self.wrong.append("memory is registered twice")
        self.registered[address] = nbytes, bool(read_only)
        return 0

    def do_host_unregister(self, address: int) -> None:
        if self.graphs:
            self.wrong.append("memory is unregistered while a graph may read it")
        del self.registered[address]

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
        ranges = [*self.locked.items(), *((a, n) for a, (n, _) in self.registered.items())]
        if any(a <= source and source + nbytes <= a + n for a, n in ranges):
            self.late += 1
            self._queue(stream, lambda: c.memmove(to, source, nbytes), source, nbytes)
        else:  # pageable memory is read before the call returns
            if self.capture is not None:
                self.wrong.append("a graph copies pageable memory")
            data = c.string_at(source, nbytes)
            self._queue(stream, lambda: c.memmove(to, data, nbytes))
        return 0

    def do_copy_on_device(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self._queue(stream, lambda: c.memmove(to, source, nbytes))

    def do_launch_all(self, native: Any, n: int, stream: int) -> int:
        for one in native:
            self.launches += 1
            if self.launches == self.fail_launch:
                return INVALID
            kernel = self.kernels.get(one.function, reverse)
            self._queue(stream, kernel(c.string_at(one.args, one.args_bytes)))
        return 0


def reverse(args: bytes) -> Callable[[], Any]:
    """A kernel that turns bytes round: from where, to where, how many."""
    raw, to, nbytes = np.frombuffer(args, np.uint64).tolist()
    return lambda: c.memmove(to, c.string_at(raw, nbytes)[::-1], nbytes)
