"""The link between the parts of a divided model: the memory that transfers pass through."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hybridkern.kernels import _cpu
from hybridkern.plan.division import Division, Segment, Send, Transfer

if TYPE_CHECKING:
    from .parts import Part, Running, Sizes

LINKED_BYTES = 64 << 10  # what a transfer brings across by mapped memory; the copy engines are faster with more
_LINE = 64


def _lines(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE


class Link:
    """Page-locked memory: of every transfer a flag and the rows of a small step, and two areas that the transfers of
    larger steps take turns in. linked_rows: of the largest step that is small in this sense, 0 for none."""

    def __init__(self, division: Division, parts: Mapping[str, Part], sizes: Sizes) -> None:
        self._transfers = division.transfers
        gpus = [parts[d] for d in division.devices if parts[d].classes]
        self.mapped = all(p.mapped for p in gpus)
        self.linked_rows = 0
        if gpus and self._transfers and self.mapped:
            small = (r for r in gpus[0].classes if _crossing(division, r, sizes) <= LINKED_BYTES)
            self.linked_rows = max(small, default=0)
        rows = self.linked_rows
        flags = _LINE * (1 + len(self._transfers))
        own = [_layout(t, rows, sizes) for t in self._transfers]
        large = max((_layout(t, sizes.max_rows, sizes)[-1] for t in self._transfers), default=0)
        self._sizes = sizes
        holder = (gpus or [parts[d] for d in division.devices])[0]
        self._memory = holder.locked(flags + sum(at[-1] for at in own) + 2 * large) if self._transfers else None
        base = 0 if self._memory is None else self._memory.address
        self.abort = base
        self._flags = {t: base + _LINE * (1 + i) for i, t in enumerate(self._transfers)}
        self._linked: dict[Transfer, list[int]] = {}
        at = base + flags
        for t, offsets in zip(self._transfers, own, strict=True):
            self._linked[t] = [at + o for o in offsets[:-1]]
            at += offsets[-1]
        self._areas = [(_cpu.Area(), at), (_cpu.Area(), at + large)]
        if self._memory is not None:
            ctypes.memset(base, 0, flags)

    def flag(self, t: Transfer) -> int:
        """Where the number of the step stands whose rows are there."""
        return self._flags[t]

    def linked(self, t: Transfer) -> list[int]:
        """Where the rows of its parts pass in a small step."""
        return self._linked[t]

    def native(self, t: Transfer, running: Mapping[str, Running]) -> _cpu.Transfer:
        """As the step program takes it."""
        source, to = running[t.source], running[t.to]
        area, at = self._areas[self._transfers.index(t) % 2]
        made = _cpu.Transfer(
            source.graphs, to.graphs, area, flag=self.flag(t), sent=source.event(), received=to.event()
        )
        offsets = _layout(t, self._sizes.max_rows, self._sizes)
        for b, linked, offset in zip(t.parts, self.linked(t), offsets, strict=False):
            made.add(source.end(b), to.end(b), b.width, b.rows == "outputs", linked, at + offset)
        return made

    def describe(self, division: Division) -> list[str]:
        """Every segment and what crosses."""
        made = []
        for c in division.commands:
            if isinstance(c, Segment):
                made.append(f"segment on {c.device}: {', '.join(_contents(c))}")
            elif isinstance(c, Send):
                t = c.transfer
                names = ", ".join(b.name for b in t.parts)
                made.append(f"  {t.source} -> {t.to}: {names}, {t.nbytes(1, 1)} bytes for a token")
        if self._transfers and any(t.source != "cpu" or t.to != "cpu" for t in self._transfers):
            how = (
                f"steps of up to {self.linked_rows} tokens cross through mapped memory, larger ones by copies"
                if self.linked_rows
                else "every step crosses by copies: "
                + ("too much at a time" if self.mapped else "no mapped memory here")
            )
            made.append(how)
        return made


def _crossing(division: Division, rows: int, sizes: Sizes) -> int:
    return division.crossing(rows, min(rows, sizes.max_outputs))


def _layout(t: Transfer, rows: int, sizes: Sizes) -> list[int]:
    """Where the parts begin, and how long they are together."""
    at = [0]
    for b in t.parts:
        at.append(at[-1] + _lines(4 * b.width * (rows if b.rows == "tokens" else min(rows, sizes.max_outputs))))
    return at


def _contents(segment: Segment) -> list[str]:
    """Blocks, or what there is of them."""
    found: dict[str, list[str]] = {}
    for op in segment.ops:
        if op.kind == "embed":
            found.setdefault("embedding", [])
        elif op.kind == "attend":
            found.setdefault(f"block {op.args[1].block}", []).append("attention")
        elif op.kind == "matmul":
            place, _, name = op.args[1].name.removeprefix("blk.").partition(".")
            what = f"block {place}" if op.args[1].name.startswith("blk.") else "head"
            found.setdefault(what, []).append(name.removesuffix(".weight"))
    return _joined(found)


def _joined(found: Mapping[str, Sequence[str]]) -> list[str]:
    """Runs of whole blocks in one; a block is whole with its attention and its last product."""
    made: list[str] = []
    run: list[str] = []
    for name, what in [*found.items(), ("", [])]:
        if "attention" in what and "ffn_down" in what and len(what) > 4:
            run.append(name.removeprefix("block "))
            continue
        if run:
            made.append(f"block {run[0]}" if len(run) == 1 else f"blocks {run[0]} to {run[-1]}")
            run = []
        if name.startswith("block"):
            made.append(f"{name} ({', '.join(what)})")
        elif name:
            made.append(name)
    return made or ["angles"]
