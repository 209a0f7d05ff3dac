"""The part of a model that the CPU set computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybridkern.errors import ArgumentError
from hybridkern.kernels import _cpu
from hybridkern.kernels.cpu import CpuSet
from hybridkern.kernels.cpu.build import CacheLayout, padded
from hybridkern.kernels.cpu.cpu_set import CpuTape
from hybridkern.kernels.interface import Buffer, KVSpec, Weight
from hybridkern.kernels.streamed import HostSource, Streamed
from hybridkern.plan.division import Command, Segment

from .kv_cache import PAGE
from .parts import Request, Sizes
from .slots import Slot, StepSlot

if TYPE_CHECKING:
    from .link import Link

KV_TYPES = {"f16": 0, "q8_0": 1, "q4_0": 2, "f32": 3}


class HostPages:
    """Pages in main memory, touched when they are first written."""

    def __init__(self, specs: Sequence[KVSpec], sizes: Sizes) -> None:
        if sizes.kv_type not in KV_TYPES:
            raise ArgumentError(f"kv_type {sizes.kv_type!r} is not one of {', '.join(KV_TYPES)}")
        kv = KV_TYPES[sizes.kv_type]
        planes: dict[int, tuple[int, int, int]] = {}
        at = 0
        for spec in specs:
            _check_heads(spec, sizes.kv_type)
            k, v = _cpu.kv_plane_bytes(kv, spec.head_dim_k)[0], _cpu.kv_plane_bytes(kv, spec.head_dim_v)[1]
            planes[spec.block] = (at, k, v)
            at += spec.n_kv * (k + v)
        self.page_bytes = padded(at, 4096)
        self._memory = _cpu.Memory(self.page_bytes * sizes.n_pages, True)
        self.layout = CacheLayout(kv, self._memory.address, self.page_bytes, planes, sizes.max_pages)
        used = np.frombuffer(self._memory, np.uint8)[: self.page_bytes * sizes.n_pages]
        self._bytes = used.reshape(sizes.n_pages, self.page_bytes)

    def copy_page(self, to: int, source: int) -> None:
        """Copy a whole page."""
        self._bytes[to] = self._bytes[source]

    def fill_page(self, page: int, byte: int) -> None:
        """Fill a whole page."""
        self._bytes[page] = byte


def _check_heads(spec: KVSpec, kv_type: str) -> None:
    for dim in (spec.head_dim_k, spec.head_dim_v):
        if kv_type in ("q8_0", "q4_0") and dim % 32:
            raise ArgumentError(
                f"kv_type {kv_type} needs head sizes that 32 divides; block {spec.block} has {dim}: use f16 or f32"
            )


class CpuPart:
    """On the CPU set. All of its programs are in one tape."""

    gpu: str | None = None
    classes: Sequence[int] = ()
    mapped = True

    def __init__(self, request: Request) -> None:
        r, sizes = request, request.sizes
        self.device, self._sizes, self._threads = r.device, sizes, r.threads
        self._has_cache = bool(r.specs)
        self.pages = HostPages(r.specs, sizes)
        self._set = CpuSet(r.cpu)
        self.tape = self._set.lower(
            r.ops,
            logits=r.logits,
            cache=self.pages.layout,
            max_rows=sizes.max_rows,
            max_outputs=sizes.max_outputs,
            threads=r.threads[1],
            progress=r.progress,
            repack=r.repack,
            source=r.source,
        )

    def source(self, w: Weight) -> HostSource:
        """Where a matrix lies, packed or as the file's rows."""
        assert self._set.weights is not None
        return self._set.weights.source(w)

    def stream(self, streamed: Streamed) -> None:
        """Main memory needs no streaming: products read the matrices where they are."""
        assert self._set.weights is not None
        self._set.weights.read_elsewhere(streamed.sources)

    def refill(self) -> None:
        """Nothing was ever taken away."""

    def prepare(self, commands: Sequence[Command], link: Link, fewest: int = 1) -> CpuRunning:
        """Appends the segments of a program to the tape."""
        return CpuRunning(self.tape, self.tape.add([c.ops for c in commands if isinstance(c, Segment)]))

    def locked(self, nbytes: int) -> _cpu.Memory:
        """Main memory; there is no GPU that would have to reach it."""
        return _cpu.Memory(nbytes, True)

    def slot(self, max_rows: int | None = None, max_outputs: int | None = None) -> StepSlot:
        """A slot for steps of at most so many tokens and outputs."""
        s = self._sizes
        return StepSlot(max_rows or s.max_rows, max_outputs or s.max_outputs, s.n_seq, s.max_pages, s.n_vocab)

    def attach(self, slot: Slot) -> None:
        """Every slot has what the CPU needs."""

    def collect(self) -> None:
        """Steps add to the host's arrays themselves."""

    def describe(self) -> list[str]:
        """Kernel set, memory, length of the tape."""
        s, tape = self._sizes, self.tape.native
        cache = (
            f"KV cache: {s.kv_type}, {s.n_pages} pages of {PAGE} tokens and {self.pages.page_bytes / 2**20:.2f} MiB "
            "each, touched when used"
        )
        return [
            self._set.describe(),
            f"weights: {self._set.weight_bytes / 2**20:.1f} MiB packed, {self._set.raw_bytes / 2**20:.1f} MiB as they "
            "lie in the file",
            f"buffers: {self.tape.buffer_bytes / 2**20:.1f} MiB for steps of {s.max_rows} tokens",
            *([cache] if self._has_cache else []),
            f"threads: {self._threads[0]} for single tokens, {self._threads[1]} for batches",
            f"tape: {tape.n_ops} operations, {tape.n_syncs} barriers",
        ]

    def poison(self) -> None:
        """Fill all buffers with NaN bytes: tests show by it that nothing is read that was not written."""
        self.tape.poison()

    def close(self) -> None:
        """Memory goes with the last reference."""


class CpuRunning:
    """Segments of a program, by the operations of the tape."""

    graphs: _cpu.Graphs | None = None
    top = None

    def __init__(self, tape: CpuTape, ranges: Sequence[tuple[int, int]]) -> None:
        self._tape, self._ranges = tape, ranges

    def run(self, program: _cpu.Program, k: int) -> None:
        """Adds a segment to the program."""
        program.replay(self._tape.native, *self._ranges[k])

    def end(self, b: Buffer) -> tuple[bool, int, int]:
        """Where a buffer lies."""
        return (True, *self._tape.end(b))

    def event(self) -> int:
        """The CPU has none."""
        return 0
