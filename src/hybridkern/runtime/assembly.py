"""Puts a model together: the parts of a division, the cache over them, the step program through them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from hybridkern.kernels import _cpu
from hybridkern.kernels.cpu.weights import Progress
from hybridkern.kernels.interface import Buffer, KVSpec, Op, Recorder, Weight
from hybridkern.kernels.streamed import Streamed, key_of
from hybridkern.plan.assignment import CPU, Assignment
from hybridkern.plan.division import Division, Segment, Send, divide

from .kv_cache import Pages
from .link import Link
from .parts import Factory, Part, Request, Running, Sizes, factory_of
from .slots import Slot
from .stream import first_step, streamed_blocks


class GraphSource(Protocol):
    """What the engine needs of a model: its caches, and the recording of one step, which returns the logits buffer."""

    @property
    def kv_specs(self) -> Sequence[KVSpec]: ...

    def record(self, recorder: Recorder) -> Buffer: ...


def make_parts(
    division: Division,
    logits: Buffer,
    specs: Sequence[KVSpec],
    sizes: Sizes,
    factories: Mapping[str, Factory],
    *,
    others: Iterable[str] = (),
    progress: Progress | None,
    **options: Any,
) -> dict[str, Part]:
    """The parts of all devices; those of GPUs come first, as the CPU gives back what it has packed. others: devices
    that compute in other programs only."""
    parts: dict[str, Part] = {}
    devices = tuple(dict.fromkeys((*division.devices, *others)))
    order = sorted(devices, key=lambda d: d == "cpu")
    shares = _Shares(progress, {d: _weight_bytes(division.ops(d)) for d in order})
    try:
        for device in order:
            ops = division.ops(device)
            held = {op.args[1].block for op in ops if op.kind == "attend"}
            request = Request(
                device=device,
                ops=ops,
                logits=logits if device == division.head else None,
                specs=[spec for spec in specs if spec.block in held],
                sizes=sizes,
                index=sum(bool(p.classes) for p in parts.values()),
                progress=shares.of(device),
                **options,
            )
            parts[device] = (factories.get(device) or factory_of(device))(request)
    except BaseException:
        for part in parts.values():
            part.close()
        raise
    return {device: parts[device] for device in devices}


def _weight_bytes(ops: Sequence[Op]) -> int:
    weights: list[Weight] = [op.args[0 if op.kind == "embed" else 1] for op in ops if op.kind in ("embed", "matmul")]
    return sum({id(w): w.data.nbytes for w in weights}.values())


class _Shares:
    """One progress of several parts, each of which counts its own bytes."""

    def __init__(self, progress: Progress | None, nbytes: Mapping[str, int]) -> None:
        self._progress, self._nbytes = progress, nbytes

    def of(self, device: str) -> Progress | None:
        """What a part is given to tell."""
        progress, all_ = self._progress, list(self._nbytes)
        if progress is None or len(all_) == 1:
            return progress
        before = sum(self._nbytes[d] for d in all_[: all_.index(device)])
        own, total = self._nbytes[device], sum(self._nbytes.values())

        def tell(done: int, of: int) -> None:
            progress(before + own * done // max(of, 1), total)

        return tell


def programs_of(
    division: Division,
    ops: Sequence[Op],
    logits: Buffer,
    assignment: Assignment | None,
    parts: Mapping[str, Part],
    sizes: Sizes,
    pages: int,
) -> list[tuple[int, Assembled]]:
    """The step programs of a model, each with the tokens of a step from which on it is used: a second one where blocks
    are streamed. pages: address of the page table."""
    if assignment is None or not assignment.streamed or first_step(assignment) > sizes.max_rows:
        return [(1, Assembled(division, parts, sizes, pages))]
    kept = assignment.kept
    for device, blocks in streamed_blocks(ops, assignment).items():
        sources = {key_of(w): parts[CPU].source(w) for block in blocks for w in block}
        parts[device].stream(Streamed(blocks, sources, assignment.stream_depth, device in kept.values()))
    if kept:
        division = divide(ops, logits, assignment.in_small_steps)
    fewest = first_step(assignment)
    large = divide(ops, logits, assignment.in_large_steps)
    return [
        (1, Assembled(division, parts, sizes, pages)),
        (fewest, Assembled(large, parts, sizes, pages, fewest)),
    ]


class AllPages:
    """The pages of all parts: a page has one number everywhere."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._pages: list[Pages] = [p.pages for p in parts if p.pages.page_bytes]

    @property
    def page_bytes(self) -> int:
        """Of a page, on all parts together."""
        return sum(p.page_bytes for p in self._pages)

    def copy_page(self, to: int, source: int) -> None:
        """Copy a page."""
        for p in self._pages:
            p.copy_page(to, source)

    def fill_page(self, page: int, byte: int) -> None:
        """Fill a page."""
        for p in self._pages:
            p.fill_page(page, byte)


class Assembled:
    """A step program over parts. pages: address of the page table; fewest: tokens of its steps, at least."""

    def __init__(
        self, division: Division, parts: Mapping[str, Part], sizes: Sizes, pages: int, fewest: int = 1
    ) -> None:
        self.division = division
        self._parts, self._link = parts, Link(division, parts, sizes)
        running: dict[str, Running] = {
            d: parts[d].prepare(division.of(d), self._link, fewest) for d in division.devices
        }
        native = {t: self._link.native(t, running) for t in division.transfers}
        self.program = _cpu.Program(pages, sizes.n_seq, self._link.abort)
        self.top = running[division.head].top
        self.whole = len(division.commands) == 1
        done = dict.fromkeys(division.devices, 0)
        for c in division.commands:
            if isinstance(c, Segment):
                running[c.device].run(self.program, done[c.device])
                done[c.device] += 1
            elif isinstance(c, Send):
                self.program.send(native[c.transfer])
            else:
                self.program.receive(native[c.transfer])

    def slot(self, max_rows: int | None = None, max_outputs: int | None = None) -> Slot:
        """A slot for steps of at most so many tokens and outputs."""
        made = self._parts[self.division.head].slot(max_rows, max_outputs)
        for device, part in self._parts.items():
            if device != self.division.head:
                part.attach(made)
        return made

    def ahead(self) -> list[Slot]:
        """Two slots for greedy steps that a GPU is given ahead, which it must have to itself; or none."""
        alone = self.whole and self._parts[self.division.head].gpu is not None
        return [self.slot(1, 1), self.slot(1, 1)] if alone else []

    def describe(self, fewest: int = 1) -> list[str]:
        """Segments and what crosses, where it is divided."""
        head = [f"steps of {fewest} tokens and more:"] if fewest > 1 else []
        return head + self._link.describe(self.division) if head or not self.whole else []
