"""Groups recorded operations into what one launch does, for steps of at most n tokens.

- Consecutive products of one format, or with one column of two, with one input are a group, and with few columns
  gate, up and their gated product are one launch.
- Head norm, rotation and the store of keys and values are one launch over heads.
- With one column, a norm whose result only products read is left to these products, which normalise for themselves.
- An operation by row hands its result on in every form that a later product wants: f32, int8 codes, halves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hybridkern.errors import KernelError
from hybridkern.kernels.heads import HEAD_KINDS, Stream, join_heads, overlap, same
from hybridkern.kernels.interface import Buffer, KVSpec, Op

from .arguments import MAX_PARTS, MAX_STREAMS
from .launches import FEW, MIXED
from .layout import LAYOUTS

Form = Literal["f32", "half"]
ROW_KINDS = {"rmsnorm", "glu", "add", "scale", "softcap", "select"}
KINDS = {"embed", "angles", "matmul", "attend"} | ROW_KINDS | HEAD_KINDS


def form_of(type_name: str, n: int) -> Form:
    """What a product with this format reads when there are at most n columns."""
    if LAYOUTS[type_name].is_float:
        return "f32" if n <= FEW or type_name == "F32" else "half"
    return "f32" if n == 1 else "half"


def is_precise(op: Op) -> bool:
    """Whether one column of a product's input needs 15 bits."""
    return bool(op.params.get("precise", False))


@dataclass
class Fused:
    """What one launch does (kind "matmul": one per format of the products)."""

    kind: str
    op: Op
    products: list[Op] = field(default_factory=list)
    norm: Op | None = None  # a norm that the products do for themselves
    glu: Op | None = None
    streams: list[Stream] = field(default_factory=list)
    kv: KVSpec | None = None
    forms: set[Form] = field(default_factory=set)  # of a row operation's result
    x: Buffer | None = None  # of "form": what is only brought into another form


def _reads(op: Op) -> list[Buffer]:
    return [a for a in op.args if isinstance(a, Buffer)]


def _writes(op: Op) -> list[Buffer]:
    return [op.out] if isinstance(op.out, Buffer) and op.kind != "observe" else []


class Fusion:
    """The launches of a list of operations. keep: buffers that are read from outside."""

    def __init__(self, ops: Sequence[Op], n: int, keep: Sequence[Buffer] = ()) -> None:
        unknown = sorted({op.kind for op in ops} - KINDS - {"observe"})
        if unknown:
            raise KernelError(f"the CUDA set does not know the operations {', '.join(unknown)}")
        self._ops, self._n, self._keep = list(ops), n, list(keep)

    def launches(self) -> list[Fused]:
        """In order."""
        out: list[Fused] = []
        i = 0
        lazy: list[Op] = []
        while i < len(self._ops):
            op, taken = self._ops[i], 1
            if op.kind == "matmul":
                made, taken = self._products(i, lazy)
                out += made
            elif op.kind in HEAD_KINDS:
                made_heads, taken = self._heads(i)
                out.append(made_heads)
            elif op.kind == "rmsnorm" and self._can_wait(i):
                lazy.append(op)
            elif op.kind != "observe" or op.params.get("sums") is not None:
                forms = self._forms(i) if op.kind in ROW_KINDS else set()
                out.append(Fused(op.kind, op, forms=forms))
            for done in self._ops[i : i + taken]:
                lazy = [o for o in lazy if not any(overlap(w, o.out) for w in _writes(done)) or o is done]
            i += taken
        return list(_with_forms(out, self._n))

    def _until_written(self, i: int) -> Iterator[Op]:
        """Operations behind i up to the one that overwrites its result, that one included."""
        for op in self._ops[i + 1 :]:
            yield op
            if any(overlap(w, self._ops[i].out) for w in _writes(op)):
                return

    def _readers(self, i: int) -> list[Op]:
        b = self._ops[i].out
        return [op for op in self._until_written(i) if any(overlap(b, r) for r in _reads(op))]

    def _is_kept(self, b: Buffer) -> bool:
        return any(overlap(b, k) for k in self._keep)

    def _can_wait(self, i: int) -> bool:
        """Whether a norm can be left to the products that read it: one column, and its input is still there."""
        op = self._ops[i]
        x, _, add = op.args
        if self._n != 1 or add is not None or self._is_kept(op.out) or op.out.width % 32:
            return False
        readers = self._readers(i)
        if not readers or any(
            r.kind != "matmul" or not same(r.args[0], op.out) or LAYOUTS[r.args[1].type].is_float for r in readers
        ):
            return False
        last = max(self._ops.index(r) for r in readers)
        return not any(overlap(w, x) for o in self._ops[i + 1 : last] for w in _writes(o))

    def _forms(self, i: int) -> set[Form]:
        op = self._ops[i]
        forms: set[Form] = {"f32"} if self._is_kept(op.out) else set()
        for r in self._readers(i):
            wanted = r.kind == "matmul" and same(r.args[0], op.out)
            forms.add(form_of(r.args[1].type, self._n) if wanted else "f32")
            if r.kind == "matmul" and any(isinstance(b, Buffer) and overlap(b, op.out) for b in r.args[2:]):
                forms.add("f32")
        return forms or {"f32"}

    def _products(self, i: int, lazy: list[Op]) -> tuple[list[Fused], int]:
        """The products from i on that share an input, grouped by format."""
        first = self._ops[i]
        x = first.args[0]
        norm = next((o for o in lazy if same(o.out, x)), None)
        run = [first]
        while i + len(run) < len(self._ops):
            op = self._ops[i + len(run)]
            alike = op.kind == "matmul" and same(op.args[0], x) and is_precise(op) == is_precise(first)
            if not alike or any(_clash(op, p) for p in run):
                break
            run.append(op)
        if any(overlap(p.out, x) for p in run):
            raise KernelError(f"the product with {first.args[1].name} would overwrite its own input")
        glu = self._glu_behind(i, run)
        if glu is not None:
            return [Fused("matmul", first, products=run, norm=norm, glu=glu)], 3
        groups: dict[str, list[Fused]] = {}
        for p in run:
            t = p.args[1].type
            alone = LAYOUTS[t].is_float and form_of(t, self._n) != "half"
            if t not in groups or alone or len(groups[t][-1].products) == MAX_PARTS:
                groups.setdefault(t, []).append(Fused("matmul", p, norm=norm))
            groups[t][-1].products.append(p)
        if self._n == 1 and not is_precise(first):
            _join_formats(groups)
        return [f for fs in groups.values() for f in fs], len(run)

    def _glu_behind(self, i: int, run: list[Op]) -> Op | None:
        """The gated product of exactly these two, if nothing else reads them."""
        if len(run) != 2 or self._n > FEW or i + 2 >= len(self._ops) or self._ops[i + 2].kind != "glu":
            return None
        glu, (gate, up) = self._ops[i + 2], run
        wg, wu = gate.args[1], up.args[1]
        fits = wg.type == wu.type and wg.rows == wu.rows and not LAYOUTS[wg.type].is_float
        plain = gate.args[3] is None and up.args[3] is None and not overlap(glu.out, gate.args[0])
        if not (fits and plain and same(glu.args[0], gate.out) and same(glu.args[1], up.out)):
            return None
        for k in (i, i + 1):
            if self._is_kept(self._ops[k].out) or any(r is not glu for r in self._readers(k)):
                return None
        return glu

    def _heads(self, i: int) -> tuple[Fused, int]:
        made, taken = Fused("heads", self._ops[i]), 0
        while i + taken < len(self._ops) and self._ops[i + taken].kind in HEAD_KINDS:
            if not join_heads(made, self._ops[i + taken], MAX_STREAMS):
                break
            taken += 1
        if not taken:
            raise KernelError(f"the CUDA set cannot run {self._ops[i].kind} here")
        return made, taken


def _join_formats(groups: dict[str, list[Fused]]) -> None:
    """Makes one launch of two formats where there is a kernel for both."""
    for one, other in MIXED:
        if len(groups.get(one, [])) == len(groups.get(other, [])) == 1:
            (f,), (g,) = groups[one], groups[other]
            if len(f.products) + len(g.products) <= MAX_PARTS:
                f.products += g.products
                del groups[other]
                groups[f"{one} and {other}"] = groups.pop(one)


def _clash(op: Op, earlier: Op) -> bool:
    touched = [op.out, *(b for b in op.args[1:] if isinstance(b, Buffer))]
    before = [earlier.out, *(b for b in earlier.args[1:] if isinstance(b, Buffer))]
    return any(overlap(earlier.out, b) for b in touched) or any(overlap(op.out, b) for b in before)


def _with_forms(fused: list[Fused], n: int) -> Iterator[Fused]:
    """Adds a launch in front of products whose input nobody has brought into their form."""
    ready: list[tuple[Buffer, Form]] = []
    for f in fused:
        if f.kind == "matmul":
            x, form = f.op.args[0], form_of(f.op.args[1].type, n)
            if form != "f32" and not any(same(b, x) and form == k for b, k in ready):
                yield Fused("form", f.op, forms={form}, x=x)
                ready.append((x, form))
        yield f
        out = [f.glu.out] if f.glu else [p.out for p in f.products] if f.products else [s.x for s in f.streams]
        out = out or _writes(f.op)
        ready = [(b, k) for b, k in ready if not any(overlap(b, o) for o in out)]
        if f.kind in ROW_KINDS:
            ready += [(f.op.out, k) for k in f.forms if k != "f32"]
