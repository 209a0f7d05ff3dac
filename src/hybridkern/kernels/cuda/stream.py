"""Weights of main memory that a GPU computes with: a step's graph brings them while it computes.

Beside the stream of the step's kernels a capture has two branches: copies of the copy engine into staging areas, and
conversions from there into the ring (ring.py). What waits for what, all of it as edges of the graph:

- a copy for the conversions that empty its area;
- a conversion for its copy, and a block's first one for the last kernel of the block that had the slot before;
- a block's first kernel for the block's last conversion.

On an H200 the copy engine then never pauses: 53 GB/s of 55. Several copies at a time, or larger ones, add nothing.
Memory that the system does not let be registered comes through page-locked buffers (locked.py); `note` says so.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from hybridkern.errors import KernelError, OutOfMemoryError
from hybridkern.kernels.interface import Weight
from hybridkern.kernels.streamed import HostSource, Key, Streamed, key_of

from . import launches
from .driver import Event, Graph, Kernels, Stream, _made, call
from .launches import Launch
from .layout import LAYOUTS
from .locked import Locked
from .registration import Registered
from .ring import AREAS, RING, STAGING, Conversion, Ring, host_bytes

Use = tuple[Launch, Sequence[Weight]]  # with the matrices that it reads


class WeightStream:
    """Blocks whose matrices lie in main memory. Made in the device's thread; memory(nbytes, purpose) gives device
    memory, which its owner frees."""

    def __init__(self, kernels: Kernels, memory: Callable[[int, str], int], streamed: Streamed) -> None:
        self._kernels, self._sources = kernels, dict(streamed.sources)
        self.layout = Ring(streamed.blocks, streamed.depth)
        self.note, self._kept = "", streamed.kept
        self._registered: Registered | None = None
        self._locked: Locked | None = None
        self._branches: list[Stream] = []
        nbytes = self.layout.nbytes
        self._ring, self._areas = memory(nbytes[RING], RING), memory(nbytes[STAGING], STAGING)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self._branches = [Stream(urgent=True) for _ in range(3)]
        parts, keep = [], []
        for block in self.layout.blocks:
            for w in block:
                source = self._sources[key_of(w)]
                parts.append((source.address, host_bytes(w, source.packed), source.read_only))
                keep += [source.keep, w.data]
        try:
            self._registered = Registered(parts, keep)
        except (KernelError, OutOfMemoryError) as error:  # the latter for more than the system lets be locked
            self._locked = Locked(AREAS, self.layout.area_bytes, keep)
            self.note = (
                f"weights in main memory could not be registered for the GPU ({error}): {self._locked.n_threads} "
                "threads copy them to page-locked memory, which is slower"
            )

    @property
    def host_nbytes(self) -> dict[str, int]:
        """Main memory by purpose: of weights that lie there anyhow, what is locked; of buffers, all."""
        made = {}
        if self._registered is not None:
            made["registered weights"] = self._registered.nbytes
        if self._locked is not None:
            made["page-locked staging"] = self._locked.nbytes
        return made

    def addresses(self) -> dict[Key, int]:
        """Where on the device each streamed matrix is when its block is computed."""
        return {key_of(w): self._ring + self.layout.offset(w) for block in self.layout.blocks for w in block}

    def describe(self) -> list[str]:
        """Blocks, ring, and how weights come."""
        ring = self.layout
        said = [f"weights of {len(ring.blocks)} blocks come from main memory, {ring.depth} at a time"]
        said += [f"{what}: {n} bytes ({n / 2**20:.1f} MiB)" for what, n in self.host_nbytes.items()]
        return said + ([self.note] if self.note else [])

    # capture

    def capture(self, stream: Stream, uses: Sequence[Use], early: bool) -> Graph:
        """A step's launches as one graph with everything that they need."""
        runs = runs_of(self.layout, uses)
        call("capture_begin", stream.handle)
        made = _Capture(self._kernels, self.layout, stream, self._branches, self._areas, self._ring, early)
        try:
            made.run(runs, self._sources, self._locked)
        except BaseException:
            with suppress(KernelError):
                Graph(_made("capture_end", stream.handle), 0).destroy()
            raise
        finally:
            made.forget()
        return Graph(_made("capture_end", stream.handle), len(uses))

    def refill(self, stream: Stream) -> None:
        """Brings the last blocks into the ring, as every step leaves them, if anybody wants them there: behind what is
        queued in `stream`, and waits."""
        if not self._kept:
            return
        made = _Capture(self._kernels, self.layout, stream, self._branches, self._areas, self._ring, False)
        n, jobs = len(self.layout.blocks), self._locked.jobs if self._locked is not None else 0
        try:
            made.run([Run(needs=b) for b in range(n - self.layout.depth, n)], self._sources, self._locked)
        finally:
            stream.wait()
            made.forget()
            if self._locked is not None:
                self._locked.forget(jobs)

    def close(self) -> None:
        """Let main memory go. Nothing may be running, and no graph of `capture` may run again. A second call does
        nothing."""
        for branch in self._branches:
            branch.destroy()
        self._branches = []
        for thing in (self._registered, self._locked):
            if thing is not None:
                thing.close()
        self._registered = self._locked = None
        self._sources = {}


@dataclass
class Run:
    """Launches one behind the other: the streamed block that must be there in front of them, and the one whose slot is
    free behind them."""

    needs: int | None = None
    frees: int | None = None
    launches: list[Launch] = field(default_factory=list)


def runs_of(ring: Ring, uses: Sequence[Use]) -> list[Run]:
    """Divides launches by the streamed blocks that they use. Raises KernelError unless these follow each other."""
    blocks = [{b for w in weights if (b := ring.block_of(w)) is not None} for _, weights in uses]
    first = {b: i for i in reversed(range(len(uses))) for b in blocks[i]}
    last = {b: i for i in range(len(uses)) for b in blocks[i]}
    order = sorted(first, key=lambda b: first[b])
    if order != sorted(order) or any(last[a] >= first[b] for a, b in pairwise(order)):
        raise KernelError("streamed blocks must be computed one after the other, in the order of their stream")
    begins, ends = {i: b for b, i in first.items()}, {i: b for b, i in last.items()}
    runs = [Run()]
    for i, (launch, _) in enumerate(uses):
        if i in begins:
            runs.append(Run(needs=begins[i]))
        runs[-1].launches.append(launch)
        if i in ends:
            runs[-1].frees = ends[i]
            runs.append(Run())
    return [run for run in runs if run.launches]


class _Capture:
    """The edges of one graph."""

    def __init__(
        self, kernels: Kernels, ring: Ring, stream: Stream, branches: Sequence[Stream], areas: int, at: int, early: bool
    ) -> None:
        self._kernels, self._ring, self._stream, self._early = kernels, ring, stream, early
        self._copies, self._conversions, self._buffers = branches
        self._areas, self._at = areas, at
        self._events: list[Event] = []
        self._emptied: dict[int, Event] = {}  # area on the device: converted
        self._taken: dict[int, Event] = {}  # page-locked buffer: copied
        self._free: dict[int, Event] = {}  # slot: no longer read
        self._n = 0  # fills

    def _mark(self, stream: Stream) -> Event:
        """The end of what is queued there."""
        made = Event(timed=False)
        self._events.append(made)
        made.record(stream)
        return made

    def forget(self) -> None:
        """The graph has its edges."""
        for event in self._events:
            event.destroy()

    def run(self, runs: Sequence[Run], sources: Mapping[Key, HostSource], locked: Locked | None) -> None:
        """Everything in the order in which it is wanted."""
        used = [self._copies, self._conversions, *([self._buffers] if locked is not None else [])]
        if any(run.needs is not None for run in runs):
            start = self._mark(self._stream)
            for branch in used:
                _after(branch, start)
        for run in runs:
            todo = run.launches
            if run.needs is not None:
                self._bring(run.needs, sources, locked)
                _after(self._stream, self._mark(self._conversions))
                # Not before the weights are there: an early start looks at the kernel in front alone.
                self._stream.launch(self._kernels, todo[:1], early=False)
                todo = todo[1:]
            self._stream.launch(self._kernels, todo, self._early)
            if run.frees is not None:
                self._free[run.frees % self._ring.depth] = self._mark(self._stream)
        if self._events:
            for branch in used:
                _after(self._stream, self._mark(branch))

    def _bring(self, block: int, sources: Mapping[Key, HostSource], locked: Locked | None) -> None:
        free = self._free.pop(block % self._ring.depth, None)
        for fill in self._ring.fills(block, sources):
            area = self._n % AREAS
            self._n += 1
            copies = fill.copies
            if locked is not None:
                if area in self._taken:
                    _after(self._buffers, self._taken[area])
                copies = locked.fill(self._buffers, area, fill)
                _after(self._copies, self._mark(self._buffers))
            if area in self._emptied:
                _after(self._copies, self._emptied[area])
            at = self._areas + area * self._ring.area_bytes
            for source, start, nbytes in copies:
                call("copy_to_device", at + start, c.c_void_p(source), nbytes, self._copies.handle)
            arrived = self._mark(self._copies)
            self._taken[area] = arrived
            _after(self._conversions, arrived)
            if free is not None:
                _after(self._conversions, free)
                free = None
            for part in fill.conversions:
                self._convert(part, at + part.start)
            self._emptied[area] = self._mark(self._conversions)

    def _convert(self, part: Conversion, source: int) -> None:
        w, to = part.weight, self._at + part.to
        if LAYOUTS[w.type].is_float and not part.packed:
            call("copy_on_device", to, source, part.nbytes, self._conversions.handle)
            return
        one = launches.convert(w.type, source, to, part.rows, w.cols, part.packed)
        self._conversions.launch(self._kernels, [one], early=False)


def _after(stream: Stream, event: Event) -> None:
    """What is queued from now on in a stream waits for the event."""
    call("stream_after", stream.handle, event.handle)
