"""Divides the recorded operations of a model between devices: segments of operations, and what crosses between them.

A product runs where its weight lies; attention, and what it needs of heads, where the block's cache lies; everything
else where the fewest values have to cross. Norms are computed by every device that reads their result, since that
costs less than sending it. Nothing is read on a device that did not compute or receive it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from hybridkern.errors import KernelError
from hybridkern.kernels.cpu.outputs import ROW_WISE, select_early
from hybridkern.kernels.heads import overlap
from hybridkern.kernels.interface import Buffer, KVSpec, Op

from .assignment import Assignment
from .dataflow import Span, Validity, merged, overwrites, reads, writes

MOST_PARTS = 4  # of a transfer
COSTLY = {"matmul", "attend"}


@dataclass(frozen=True, eq=False)
class Transfer:
    """Buffers, or columns of them, that one device sends to another in one go."""

    source: str
    to: str
    parts: tuple[Buffer, ...]

    def nbytes(self, rows: int, outputs: int) -> int:
        """What crosses in a step of so many tokens and outputs."""
        return sum(4 * b.width * (rows if b.rows == "tokens" else outputs) for b in self.parts)


@dataclass(frozen=True, eq=False)
class Segment:
    """Operations that a device runs without a word from others. keep: what it wrote and is read behind it there, or
    sent."""

    device: str
    ops: tuple[Op, ...]
    keep: tuple[Buffer, ...] = ()


@dataclass(frozen=True, eq=False)
class Send:
    """A transfer leaves its source."""

    transfer: Transfer


@dataclass(frozen=True, eq=False)
class Receive:
    """A transfer arrives."""

    transfer: Transfer


Command = Segment | Send | Receive


@dataclass(frozen=True, eq=False)
class Division:
    """The commands of a step, in an order in which one thread can run them; logits are made on the device `head`."""

    commands: tuple[Command, ...]
    head: str

    @property
    def devices(self) -> tuple[str, ...]:
        """All that compute something."""
        return tuple(dict.fromkeys(c.device for c in self.commands if isinstance(c, Segment)))

    def of(self, device: str) -> list[Command]:
        """What a device does, in order."""
        return [c for c in self.commands if _device_of(c) == device]

    def ops(self, device: str) -> list[Op]:
        """All operations of a device."""
        return [op for c in self.commands if isinstance(c, Segment) and c.device == device for op in c.ops]

    @property
    def transfers(self) -> list[Transfer]:
        """In order."""
        return [c.transfer for c in self.commands if isinstance(c, Send)]

    def crossing(self, rows: int, outputs: int) -> int:
        """Bytes of the largest transfer of a step."""
        return max((t.nbytes(rows, outputs) for t in self.transfers), default=0)


def _device_of(c: Command) -> str:
    if isinstance(c, Segment):
        return c.device
    return c.transfer.source if isinstance(c, Send) else c.transfer.to


def whole(ops: Sequence[Op], device: str, cpus: Container[str] = ("cpu",)) -> Division:
    """Everything on one device."""
    return Division((Segment(device, tuple(select_early(ops) if device in cpus else ops)),), device)


def divide(ops: Sequence[Op], logits: Buffer, assignment: Assignment, cpus: Container[str] = ("cpu",)) -> Division:
    """The division of a step that ends in `logits`. cpus: devices that select the rows of outputs early."""
    early = select_early(ops)
    places = _Places(early, logits, assignment)
    behind = range(1 + max((i for i, op in enumerate(early) if op.kind == "attend"), default=-1), len(early))
    if not all(d in cpus for i in behind for d in places.of[i] if early[i].kind in {*ROW_WISE, "select"}):
        early = list(ops)
        places = _Places(early, logits, assignment)
    return Division(tuple(_with_keep(_Emission(early, places.of, cpus).commands())), assignment.head)


class _Places:
    """The devices of every operation: more than one only where it is repeated."""

    def __init__(self, ops: Sequence[Op], logits: Buffer, assignment: Assignment) -> None:
        self._ops, self._logits, self._assignment = ops, logits, assignment
        fixed = [self._fixed(i) for i in range(len(ops))]
        self.of: list[tuple[str, ...]] = []
        self._wanted = self._wanted_by(fixed)
        valid = Validity()
        for i, op in enumerate(ops):
            device = fixed[i]
            made = self._angles(op, fixed) if op.kind == "angles" else (device,) if device else self._chosen(i, valid)
            self.of.append(made)
            for d in made:
                for b in reads(op):
                    valid.add(b, d)
            for b in writes(op):
                valid.write(b, made)

    def _fixed(self, i: int) -> str | None:
        op, a = self._ops[i], self._assignment
        if op.kind == "embed":
            return a.embedding
        if op.kind in ("matmul", "softcap") and op.out.root is self._logits.root:
            return a.head
        if op.kind == "matmul":
            name = op.args[1].name
            if name not in a.tensors:
                raise KernelError(f"the assignment does not say where {name} lies")
            return a.tensors[name]
        if op.kind in ("head_norm", "rope", "store_kv", "attend"):
            return a.kv[
                next(kv.block for o in islice(self._ops, i, None) for kv in (o.out, *o.args) if isinstance(kv, KVSpec))
            ]
        return None

    def _angles(self, op: Op, fixed: Sequence[str | None]) -> tuple[str, ...]:
        users = (d for d, o in zip(fixed, self._ops, strict=True) if o.kind == "rope" and o.args[1] is op.out)
        return tuple(dict.fromkeys(d for d in users if d)) or (self._assignment.embedding,)

    def _wanted_by(self, fixed: Sequence[str | None]) -> list[tuple[str, ...]]:
        """Where the results of every operation are read, as far as that is fixed: through those that are not."""
        wanted: list[tuple[str, ...]] = [()] * len(self._ops)
        for i in range(len(self._ops) - 1, -1, -1):
            found: dict[str, None] = {}
            for b in writes(self._ops[i]):
                for j in self._readers(i, b):
                    device = fixed[j]
                    found |= dict.fromkeys((device,) if device else wanted[j])
            wanted[i] = tuple(found)
        return wanted

    def _readers(self, i: int, b: Buffer) -> Iterator[int]:
        for j in range(i + 1, len(self._ops)):
            if any(overlap(r, b) for r in reads(self._ops[j])):
                yield j
            if overwrites(writes(self._ops[j]), b):
                return

    def _chosen(self, i: int, valid: Validity) -> tuple[str, ...]:
        """The cheapest device of an operation that may run anywhere; a norm runs wherever it is read."""
        op, wanted = self._ops[i], self._wanted[i]
        if op.kind == "rmsnorm" and op.args[2] is None and wanted:
            return wanted
        inputs = reads(op)
        candidates = dict.fromkeys([*wanted, *(d for b in inputs for d in valid.devices(b))])

        def cost(device: str) -> int:
            missing = sum(_weight(b) for b in inputs if device not in valid.devices(b))
            return missing + sum(_weight(op.out) for d in wanted if d != device)

        if not candidates:
            raise KernelError(f"{op.kind} of {op.out.name} reads what nothing wrote")
        return (min(candidates, key=cost),)


def _weight(b: Buffer) -> int:
    """What it costs to send: a step has far fewer outputs than tokens."""
    return b.width * (16 if b.rows == "tokens" else 1)


class _Emission:
    """Puts operations into segments, each closed as late as it can be; a GPU is given work before the CPU begins."""

    def __init__(self, ops: Sequence[Op], places: Sequence[tuple[str, ...]], cpus: Container[str]) -> None:
        self._ops, self._places, self._cpus = ops, places, cpus
        self._valid = Validity()
        self._open: dict[str, list[Op]] = {}
        self._out: list[Command] = []

    def commands(self) -> list[Command]:
        """Of the whole step."""
        for i, op in enumerate(self._ops):
            for device in self._places[i]:
                self._provide(i, device)
            for device in self._places[i]:
                self._open.setdefault(device, []).append(op)
            for b in writes(op):
                self._valid.write(b, self._places[i])
        for device in list(self._open):
            self._close(device)
        return self._out

    def _close(self, device: str) -> None:
        ops = self._open.pop(device, None)
        if ops:
            self._out.append(Segment(device, tuple(ops)))

    def _provide(self, i: int, device: str) -> None:
        """Transfers of what the operations from i on need, as far as the device runs them one after the other."""
        if all(not self._valid.missing(b, device) for b in reads(self._ops[i])):
            return
        by_source: dict[str, list[Span]] = {}
        written: list[Buffer] = []
        for j in range(i, len(self._ops)):
            if device not in self._places[j]:
                break
            for b in reads(self._ops[j]):
                if any(overlap(b, w) for w in written):
                    continue
                for source, span in self._valid.missing(b, device):
                    by_source.setdefault(source, []).append(span)
            written += writes(self._ops[j])
        for source, spans in by_source.items():
            parts = merged(spans)
            for at in range(0, len(parts), MOST_PARTS):
                self._transfer(Transfer(source, device, tuple(parts[at : at + MOST_PARTS])))

    def _transfer(self, t: Transfer) -> None:
        ready = not any(overlap(w, b) for op in self._open.get(t.source, []) for w in writes(op) for b in t.parts)
        # What the receiver has open need not wait for this, unless it is nothing to speak of.
        apart = any(op.kind in COSTLY or _touches(op, t.parts) for op in self._open.get(t.to, []))
        if apart and t.source in self._cpus:
            self._close(t.to)
        if not ready:
            self._close(t.source)
        self._out.append(Send(t))
        if apart:
            self._close(t.to)
        self._out.append(Receive(t))
        for b in t.parts:
            self._valid.add(b, t.to)


def _touches(op: Op, parts: Sequence[Buffer]) -> bool:
    return any(overlap(b, p) for b in (*reads(op), *writes(op)) for p in parts)


def _with_keep(commands: Sequence[Command]) -> Iterator[Command]:
    """Says of every segment what is read behind it."""
    events: dict[str, list[tuple[list[Buffer], list[Buffer]]]] = {}
    ends = []
    for c in commands:
        device = _device_of(c)
        events.setdefault(device, []).extend(_events(c))
        ends.append(len(events[device]))
    for c, end in zip(commands, ends, strict=True):
        if not isinstance(c, Segment):
            yield c
            continue
        made = {(b.root, b.offset, b.width): b for op in c.ops for b in writes(op)}
        behind = events[c.device]
        yield Segment(c.device, c.ops, tuple(b for b in made.values() if _is_read(b, behind, end)))


def _events(c: Command) -> Iterator[tuple[list[Buffer], list[Buffer]]]:
    """(read, written), one after the other."""
    if isinstance(c, Segment):
        yield from ((reads(op), writes(op)) for op in c.ops)
    elif isinstance(c, Send):
        yield list(c.transfer.parts), []
    else:
        yield [], list(c.transfer.parts)


def _is_read(b: Buffer, events: Sequence[tuple[list[Buffer], list[Buffer]]], start: int) -> bool:
    for k in range(start, len(events)):
        read, written = events[k]
        if any(overlap(b, r) for r in read):
            return True
        if overwrites(written, b):
            return False
    return False
