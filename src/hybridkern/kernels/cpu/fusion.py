"""Fuses recorded operations into the operations of the CPU's tapes, and finds where barriers are needed.

Rules, all within one list of operations:
- consecutive products with the same input are one group, which shares its quantised input and one space of tasks;
- the input of a group is quantised where it is produced (norm, glu, add, attention, ...), once per kind of activation,
  and by an operation of its own only where the producer cannot;
- head norm, rotation and the store of keys and values are one operation over heads.

An operation needs a barrier in front of it if it touches what another one since the last barrier wrote, or writes what
that one touched. Products and attention divide their work dynamically, which needs a barrier in any case.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from hybridkern.errors import KernelError
from hybridkern.kernels.heads import HEAD_KINDS, Stream, join_heads
from hybridkern.kernels.interface import Buffer, KVSpec, Op

from .weights import ACT_F32, ACT_Q8_PAIR, activation_kind

MAX_PARTS = 8
MAX_STREAMS = 4
ALIGN = 16  # floats per cache line
SINGLE = {"embed", "angles", "rmsnorm", "attend", "glu", "add", "scale", "softcap", "select"}
EMITTERS = {"rmsnorm", "attend", "glu", "add", "scale", "softcap", "select", "quantize"}


@dataclass(frozen=True)
class Span:
    """Columns [offset, offset + width) of a root buffer."""

    root: Buffer
    offset: int
    width: int

    @classmethod
    def of(cls, b: Buffer) -> Span:
        """The memory of a buffer or view."""
        return cls(b.root, b.offset, b.width)

    def overlaps(self, other: Span) -> bool:
        """Whether the two share memory."""
        return (
            self.root is other.root
            and self.offset < other.offset + other.width
            and other.offset < self.offset + self.width
        )


@dataclass(frozen=True)
class Act:
    """A product's input: a span in one kind of activation."""

    span: Span
    kind: int

    @property
    def is_alias(self) -> bool:
        """Whether the floats can be used where they are: their rows begin on a cache line."""
        return self.kind == ACT_F32 and self.span.offset % ALIGN == 0


@dataclass
class Fused:
    """One operation of the tape. `op`: the recorded one (the first of a group)."""

    kind: str
    op: Op | None = None
    products: list[Op] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    kv: KVSpec | None = None
    x: Buffer | None = None  # of "quantize" and "argmax"
    emit: list[Act] = field(default_factory=list)
    sync: bool = False

    def touched(self) -> tuple[list[Hashable], list[Hashable]]:
        """(read, written): spans, activations, angles and caches."""
        reads: list[Hashable] = [Span.of(self.x)] if self.x is not None else []
        writes: list[Hashable] = list(self.emit)
        if self.kind == "observe" and self.op is not None:
            reads.append(Span.of(self.op.out))
        elif self.kind == "matmul":
            for p in self.products:
                add = p.args[3]
                act = product_input(p)
                reads.append(act.span if act.is_alias else act)
                reads += [Span.of(add)] if add is not None else []
                writes.append(Span.of(p.out))
        elif self.kind == "heads":
            for s in self.streams:
                writes.append(Span.of(s.x))
                reads += [s.angles] if s.angles is not None else []
            writes += [("kv", self.kv.block)] if self.kv is not None else []
        elif self.op is not None:
            writes.append(Span.of(self.op.out) if isinstance(self.op.out, Buffer) else self.op.out)
            for a in self.op.args:
                if isinstance(a, Buffer):
                    reads.append(Span.of(a))
                elif isinstance(a, KVSpec):
                    reads.append(("kv", a.block))
        return reads, writes


def product_input(op: Op) -> Act:
    """What a product reads."""
    return Act(Span.of(op.args[0]), activation_kind(op.args[1].type, op.params.get("precise", False)))


def fuse(ops: Iterable[Op], logits: Buffer | None = None) -> list[Fused]:
    """The tape's operations in order, with their quantisations and barriers; ends in the greedy choice of `logits`."""
    fused = _Quantisation().insert(_grouped(ops))
    if logits is not None:
        fused.append(Fused("argmax", x=logits))
    _set_barriers(fused)
    return fused


def _grouped(ops: Iterable[Op]) -> Iterator[Fused]:
    last: Fused | None = None
    for op in ops:
        if last is not None and (
            (op.kind == "matmul" and _joins_products(last, op))
            or (op.kind in HEAD_KINDS and last.kind == "heads" and join_heads(last, op, MAX_STREAMS))
        ):
            continue
        if last is not None:
            yield last
        last = None
        if op.kind == "matmul":
            if Span.of(op.out).overlaps(Span.of(op.args[0])):
                raise KernelError(f"the product with {op.args[1].name} would overwrite its own input")
            last = Fused("matmul", products=[op])
        elif op.kind in HEAD_KINDS:
            last = Fused("heads")
            if not join_heads(last, op, MAX_STREAMS):
                raise KernelError(f"the CPU set cannot run {op.kind} here")
        elif op.kind in SINGLE or (op.kind == "observe" and op.params.get("sums") is not None):
            last = Fused(op.kind, op)
        elif op.kind != "observe":
            raise KernelError(f"the CPU set does not know the operation {op.kind!r}")
    if last is not None:
        yield last


def _joins_products(group: Fused, op: Op) -> bool:
    """Adds a product to a group; False where its input differs or memory is shared."""
    if group.kind != "matmul" or len(group.products) == MAX_PARTS:
        return False
    x, _, _, add = op.args
    first = group.products[0]
    if Span.of(x) != Span.of(first.args[0]) or op.out.width < 1:
        return False
    if (product_input(op).kind == ACT_Q8_PAIR) != (product_input(first).kind == ACT_Q8_PAIR):
        return False  # a group has one number of columns
    outs = [Span.of(p.out) for p in group.products]
    reads = [Span.of(b) for b in (x, add) if b is not None]
    earlier = [Span.of(p.args[3]) for p in group.products if p.args[3] is not None]
    out = Span.of(op.out)
    if any(a.overlaps(b) for a in outs for b in [out, *reads]) or any(out.overlaps(b) for b in [*earlier, Span.of(x)]):
        return False
    group.products.append(op)
    return True


class _Quantisation:
    """Gives every product its input, at the producer if that is possible."""

    def __init__(self) -> None:
        self._valid: set[Act] = set()
        self._writers: dict[Span, Fused] = {}

    def insert(self, grouped: Iterable[Fused]) -> list[Fused]:
        out: list[Fused] = []
        for f in grouped:
            if f.kind == "matmul":
                for p in f.products:
                    extra = self._provide(product_input(p), p.args[0])
                    out += [extra] if extra is not None else []
            out.append(f)
            for span in f.touched()[1]:
                if isinstance(span, Span):
                    self._written(span, f)
        return out

    def _written(self, span: Span, by: Fused) -> None:
        self._valid = {a for a in self._valid if not a.span.overlaps(span)}
        self._writers = {s: f for s, f in self._writers.items() if not s.overlaps(span)}
        self._writers[span] = by

    def _provide(self, act: Act, x: Buffer) -> Fused | None:
        if act.is_alias or act in self._valid:
            return None
        self._valid.add(act)
        writer = self._writers.get(act.span)
        if writer is not None and writer.kind in EMITTERS and _can_emit(writer, act):
            writer.emit.append(act)
            return None
        made = Fused("quantize", x=x, emit=[act])
        self._writers[act.span] = made  # a second kind joins it
        return made


def _can_emit(f: Fused, act: Act) -> bool:
    if f.kind != "attend" or act.kind == ACT_F32:
        return True
    # Attention produces the heads of one KV head together: whole blocks only.
    op = f.op
    assert op is not None
    kv: KVSpec = op.args[1]
    return op.params["n_head"] // kv.n_kv * kv.head_dim_v % 32 == 0


def _conflict(a: Iterable[Hashable], b: Iterable[Hashable]) -> bool:
    right = list(b)
    return any(x.overlaps(y) if isinstance(x, Span) and isinstance(y, Span) else x == y for x in a for y in right)


def _set_barriers(fused: list[Fused]) -> None:
    reads: list[Hashable] = []
    writes: list[Hashable] = []
    for f in fused:
        r, w = f.touched()
        f.sync = f.kind in ("matmul", "attend") or _conflict(r + w, writes) or _conflict(w, reads)
        if f.sync:
            reads, writes = [], []
        reads += r
        writes += w
