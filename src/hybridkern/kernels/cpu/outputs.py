"""Leaves out what is computed for tokens whose logits nobody asked for.

Behind the last attention every operation works on each row by itself, up to the one that selects the rows of the
outputs. Selecting first computes the same rows, to the bit, and no others: of a prompt, one row instead of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hybridkern.kernels.interface import Buffer, Op

ROW_WISE = {"rmsnorm", "matmul", "glu", "add", "scale", "softcap"}


def select_early(ops: Sequence[Op]) -> list[Op]:
    """The operations with the selection moved to behind the last attention, where everything between is row by row."""
    kinds = [op.kind for op in ops]
    if kinds.count("select") != 1 or "attend" not in kinds:
        return list(ops)
    last, at = len(kinds) - 1 - kinds[::-1].index("attend"), kinds.index("select")
    between, chosen = ops[last + 1 : at], ops[at]
    if not between or not {op.kind for op in between} <= ROW_WISE or chosen.args[0].base is not None:
        return list(ops)
    rows = _Rows()
    moved = [rows.of(op) for op in between]
    result = rows.roots.get(chosen.args[0])
    behind = ops[at + 1 :]
    # What is read later must be the selection alone, for the tokens' buffers are no longer written.
    if result is None or any(b.root in rows.roots for op in behind for b in _buffers(op)):
        return list(ops)
    after = [_renamed(op, {chosen.out: result}) for op in behind]
    return [*ops[: last + 1], *(Op("select", to, (root,)) for root, to in rows.needed), *moved, *after]


class _Rows:
    """Buffers of the outputs in place of those of the tokens."""

    def __init__(self) -> None:
        self.roots: dict[Buffer, Buffer] = {}
        self.needed: list[tuple[Buffer, Buffer]] = []  # read before they are written: to be selected
        self._views: dict[Buffer, Buffer] = {}

    def of(self, op: Op) -> Op:
        parts = [op.out] if op.out.base is not None else []  # the rest of a row that is written in part
        for b in (*op.args, *parts):
            if isinstance(b, Buffer) and b.root not in self.roots:
                self.needed.append((b.root, self._root_of(b)))
        return _renamed(op, {b: self._view_of(b) for b in _buffers(op)})

    def _root_of(self, b: Buffer) -> Buffer:
        root = b.root
        if root not in self.roots:
            self.roots[root] = Buffer(f"{root.name} of outputs", root.width, "outputs")
        return self.roots[root]

    def _view_of(self, b: Buffer) -> Buffer:
        root = self._root_of(b)
        if b.base is None:
            return root
        if b not in self._views:
            self._views[b] = root.view(b.offset, b.width)
        return self._views[b]


def _buffers(op: Op) -> list[Buffer]:
    return [b for b in (op.out, *op.args) if isinstance(b, Buffer)]


def _renamed(op: Op, names: dict[Buffer, Buffer]) -> Op:
    def new(b: Any) -> Any:
        return names.get(b, b) if isinstance(b, Buffer) else b

    return replace(op, out=new(op.out), args=tuple(new(b) for b in op.args))
