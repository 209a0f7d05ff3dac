"""Weights that come from main memory during a step, over a driver that keeps to nothing but the edges of a graph."""

from __future__ import annotations

import ctypes as c
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lazy_driver import LazyDriver

from hybridkern.errors import KernelError
from hybridkern.kernels.cuda import arguments, driver, ring
from hybridkern.kernels.cuda.driver import Memory, Stream
from hybridkern.kernels.cuda.launches import Launch
from hybridkern.kernels.cuda.layout import device_bytes
from hybridkern.kernels.cuda.registration import page_ranges
from hybridkern.kernels.cuda.ring import AREAS, RING, STAGING, Ring, ring_bytes
from hybridkern.kernels.cuda.stream import WeightStream, runs_of
from hybridkern.kernels.interface import Weight
from hybridkern.kernels.streamed import HostSource, Key, Streamed, key_of

pytestmark = pytest.mark.on_host
SHAPES = (("Q4_K", 48, 256), ("F16", 32, 64), ("Q8_0", 112, 64), ("Q6_K", 16, 512))


class Kernels:
    """Functions are numbers: what each does, the driver is told."""

    def function(self, name: str, shared: int) -> int:
        return next((1 + i for i, (kind, _, _) in enumerate(SHAPES) if name.endswith(kind.lower())), 100)


def verbatim(kind: str) -> Callable[[bytes], Callable[[], Any]]:
    """A conversion that changes nothing: of these shapes all layouts have the same bytes."""

    def kernel(args: bytes) -> Callable[[], Any]:
        a = np.frombuffer(args, arguments.CONVERT)[0]
        n = device_bytes(kind, int(a["rows"]), int(a["cols"]))
        return lambda: c.memmove(int(a["to"]["at"]), int(a["raw"]), n)

    return kernel


def looks(at: int, want: int, nbytes: int, i: int) -> Launch:
    return Launch("hk_use", (1, 1, 1), (1, 1, 1), 0, np.array([at, want, nbytes, i], np.uint64))


class Case:
    """Blocks of random matrices in main memory, a stream of them, and launches that look at what they find."""

    def __init__(
        self, made: LazyDriver, n: int, depth: int, packed: bool, folder: Path | None = None, gap: bool = False
    ) -> None:
        self.made, self.wrong = made, made.wrong
        made.kernels = {1 + i: verbatim(kind) for i, (kind, _, _) in enumerate(SHAPES)} | {100: self._use}
        sizes = [device_bytes(*s) for s in SHAPES]
        data = np.random.default_rng(n).integers(0, 256, n * (sum(sizes) + 10000 * len(sizes)), np.uint8)
        if folder is not None:
            (folder / "weights").write_bytes(data.tobytes())
            with (folder / "weights").open("rb") as file:
                data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        self.blocks: list[list[Weight]] = []
        self.sources: dict[Key, HostSource] = {}
        at = 0
        for b in range(n):
            self.blocks.append([])
            for (kind, rows, cols), size in zip(SHAPES, sizes, strict=True):
                lies = data[at : at + size].reshape(rows, -1)
                w = Weight(f"{b}.{kind}", kind, rows, cols, lies)
                self.blocks[-1].append(w)
                self.sources[key_of(w)] = HostSource(lies.ctypes.data, packed, folder is not None, data)
                at += size + (9001 if gap else 0)
        self.stream = Stream()
        self.memory: list[Memory] = []
        streamed = Streamed(self.blocks, self.sources, depth)
        self.weights = WeightStream(Kernels(), self._memory, streamed)  # type: ignore[arg-type]
        self.used: list[str] = []
        self.names = {i: w.name for i, w in enumerate(w for block in self.blocks for w in block)}

    def _memory(self, nbytes: int, what: str) -> int:
        self.memory.append(Memory(nbytes, what))
        return self.memory[-1].address

    def use(self, i: int, w: Weight) -> tuple[Launch, list[Weight]]:
        at = self.weights.addresses()[key_of(w)]
        return looks(at, w.data.ctypes.data, w.data.nbytes, i), [w]

    def _use(self, args: bytes) -> Callable[[], Any]:
        at, want, nbytes, i = np.frombuffer(args, np.uint64).tolist()

        def look() -> None:
            self.used.append(self.names.get(i, "other"))
            if c.string_at(at, nbytes) != c.string_at(want, nbytes):
                self.wrong.append(f"{self.names[i]} is not there when it is read")

        return look

    def uses(self) -> list[tuple[Launch, list[Weight]]]:
        """Of every matrix, with launches between them that read nothing of the stream."""
        here = self.sources[key_of(self.blocks[0][0])].address
        other = looks(here, here, 1, 1 << 20), list[Weight]()
        made = (self.use(i, w) for i, w in enumerate(w for block in self.blocks for w in block))
        return [other, *(u for one in made for u in (one, other))]

    def run(self, times: int = 2) -> None:
        graph = self.weights.capture(self.stream, self.uses(), early=True)
        for _ in range(times):  # a second request
            graph.launch(self.stream)
        self.stream.wait()
        names = [w.name for block in self.blocks for w in block]
        assert [u for u in self.used if u != "other"] == names * times
        assert len(self.used) == (2 * len(names) + 1) * times
        graph.destroy()

    def end(self) -> None:
        self.weights.close()
        self.weights.close()
        self.stream.destroy()
        for m in self.memory:
            m.free()
        assert self.wrong == []
        made = self.made
        assert not made.memory and not made.locked and not made.events and not made.streams and not made.registered


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Areas that take a part of a matrix, so that blocks are many fills."""
    monkeypatch.setattr(ring, "FILL", 8192)
    yield


def driver_of(monkeypatch: pytest.MonkeyPatch, **options: Any) -> LazyDriver:
    made = LazyDriver(**options)
    monkeypatch.setattr(driver, "_library", lambda: made)
    return made


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "panels"])
@pytest.mark.parametrize("refuse", [False, True], ids=["registered", "staged"])
@pytest.mark.parametrize("n", [1, 2, 5, 7])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.usefixtures("small")
def test_weights_are_there_when_they_are_read(
    monkeypatch: pytest.MonkeyPatch, depth: int, n: int, refuse: bool, packed: bool
) -> None:
    for seed in range(3):
        made = driver_of(monkeypatch, seed=seed, fail_register=-1 if refuse else 0)
        case = Case(made, n, depth, packed, gap=seed == 1)
        assert ("could not be registered" in case.weights.note) == refuse
        assert bool(made.registered) != refuse and len(made.locked) == (AREAS if refuse else 0)
        assert case.weights.layout.depth == min(depth, n)
        case.run()
        case.end()


@pytest.mark.usefixtures("small")
def test_rows_of_a_mapped_file_are_registered_for_reading(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = driver_of(monkeypatch)
    case = Case(made, 3, 2, False, folder=tmp_path)
    assert [read_only for _, read_only in made.registered.values()] == [True]
    (nbytes,) = case.weights.host_nbytes.values()
    assert nbytes == sum(n for n, _ in made.registered.values()) and nbytes % 4096 == 0
    case.run()
    case.end()


@pytest.mark.parametrize("depth", [1, 3])
def test_memory_is_what_was_planned(monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    case = Case(driver_of(monkeypatch), 5, depth, True)
    slot = sum(-(-device_bytes(*s) // 256) * 256 for s in SHAPES)
    planned = ring_bytes(case.blocks, depth)
    assert planned[RING] == depth * slot and AREAS * slot <= planned[STAGING] <= AREAS * (slot + 2048)
    assert [m.nbytes for m in case.memory] == list(planned.values())
    assert ring_bytes([], 2) == {}
    case.end()


@pytest.mark.parametrize("options", [{"fail_launch": 9}, {"fail_launch": 30}], ids=str)
@pytest.mark.usefixtures("small")
def test_an_error_in_a_capture_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, options: dict[str, int]) -> None:
    made = driver_of(monkeypatch, **options)
    case = Case(made, 3, 2, True)
    with pytest.raises(KernelError, match="as the test asked"):
        case.run()
    assert made.capture is None and not made.graphs
    case.run()  # what failed once works
    case.end()


def test_what_cannot_be_made_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither registering nor page-locked memory: everything made so far goes."""
    made = driver_of(monkeypatch, fail_register=2, fail_host=3)
    case: list[Case] = []
    with pytest.raises(KernelError, match="as the test asked"):
        case.append(Case(made, 2, 2, False, gap=True))
    assert not case and not made.locked and not made.registered and not made.events and len(made.streams) == 1


def test_blocks_out_of_order_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(driver_of(monkeypatch), 3, 2, True)
    uses = case.uses()
    n = 2 * len(SHAPES)
    for wrong in (uses[n + 1 :] + uses[: n + 1], [*uses, uses[1]], [uses[1], *uses]):
        with pytest.raises(KernelError, match="one after the other"):
            case.weights.capture(case.stream, wrong if wrong[0] is not uses[1] else [uses[n + 1], *uses], early=True)
    assert [run.needs for run in runs_of(case.weights.layout, uses)] == [None, 0, None, 1, None, 2, None]
    case.end()


def test_fills_cover_every_byte_once() -> None:
    """Rows that are no multiple of 16, copies that go on where memory does, none larger than an area."""
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, 40 << 20, np.uint8)
    for packed in (False, True):
        block, sources, at = [], {}, 64
        shapes = (("Q4_K", 1000, 4096, 2304), ("F32", 7, 96, 384), ("Q6_K", 8195, 4096, 3360), ("MXFP4", 33, 96, 51))
        for kind, rows, cols, row_bytes in shapes:
            w = Weight(kind, kind, rows, cols, data[at : at + rows * row_bytes].reshape(rows, row_bytes))
            block.append(w)
            sources[key_of(w)] = HostSource(at, packed)
            at += ring.host_bytes(w, packed)
        one = Ring([block], 2)
        fills = list(one.fills(0, sources))
        assert len(fills) > 1 and all(f.end <= one.area_bytes for f in fills)
        copied = [(source, n) for f in fills for source, _, n in f.copies]
        assert [a + n for a, n in copied[:-1]] == [a for a, _ in copied[1:]] and copied[0][0] == 64
        assert copied[-1][0] + copied[-1][1] == at and all(len(f.copies) == 1 for f in fills)
        for w in block:
            parts = [p for f in fills for p in f.conversions if p.weight is w]
            assert sum(p.rows for p in parts) == w.rows and sum(p.nbytes for p in parts) == ring.host_bytes(w, packed)
            assert all(p.rows % 16 == 0 for p in parts[:-1])


def test_page_ranges() -> None:
    K = 4096
    assert page_ranges([(K + 5, 10, True)]) == [(K, 2 * K, True)]
    assert page_ranges([(3 * K, K, True), (K + 5, 2 * K - 5, True)]) == [(K, 4 * K, True)]
    assert page_ranges([(0, K + 1, True), (K + 9, 10, True), (2 * K, 1, False)]) == [
        (0, 2 * K, True),
        (2 * K, 3 * K, False),
    ]
    assert page_ranges([(0, K + 1, False), (K + 100, 9, True)]) == [(0, 2 * K, False)]
    assert page_ranges([(0, 1, True), (9 * K, 1, True)]) == [(0, K, True), (9 * K, 10 * K, True)]
