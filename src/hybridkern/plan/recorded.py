"""What recorded operations tell before they are divided: of which block each is, and about where each would run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hybridkern.kernels.interface import Angles, Buffer, KVSpec, Op, Vector, Weight

from .assignment import Assignment
from .inventory import Inventory


def padded(n: int) -> int:
    """As every allocation of a GPU is."""
    return -(-n // 256) * 256


def devices_of(ops: Sequence[Op], a: Assignment, block: int | None) -> list[set[str]]:
    """Where each operation runs: a product where its weight lies, what has no weight where its results are read or its
    cache lies."""
    where: list[set[str]] = [set() for _ in ops]
    readers: dict[Buffer, set[str]] = {}  # of what stands in a buffer, seen from the end
    for i in range(len(ops) - 1, -1, -1):
        op = ops[i]
        if op.kind == "embed":
            where[i] = {a.embedding}
        elif op.kind == "matmul":
            where[i] = {a.head if block is None else a.tensors[op.args[1].name]}
        elif block is None:
            where[i] = set(a.devices) if op.kind == "angles" else {a.head}
        elif op.kind in ("attend", "store_kv", "rope", "head_norm"):
            where[i] = {a.kv[block]}
        elif op.kind == "rmsnorm" and op.args[2] is not None:  # behind a product, onto the residual stream
            where[i] = set(_writers(ops[:i], op.args[0], a))
        else:
            where[i] = set(readers.get(op.out.root, set()))
        read = [b for b in op.args if isinstance(b, Buffer)]
        for b in read:
            if b.root is not op.out.root if isinstance(op.out, Buffer) else True:
                readers.setdefault(b.root, set()).update(where[i])
        if isinstance(op.out, Buffer) and op.out.base is None and all(b.root is not op.out for b in read):
            readers[op.out] = set()
    return where


def _writers(before: Sequence[Op], b: Buffer, a: Assignment) -> set[str]:
    """The device of the product whose result a norm takes."""
    last = next(op for op in reversed(before) if op.kind == "matmul" and op.out.root is b.root)
    return {a.tensors[last.args[1].name]}


def weights_in(op: Op) -> list[Weight]:
    """The matrices that an operation reads."""
    return [a for a in op.args if isinstance(a, Weight)]


def blocks_of(ops: Sequence[Op], inventory: Inventory) -> Iterator[int | None]:
    """The block of every operation; None for what stands before and behind them all."""
    block_of = {id(m.weight): m.block for m in inventory.matrices()}
    known: list[int | None] = [next((block_of[id(w)] for w in weights_in(op) if id(w) in block_of), None) for op in ops]
    products = [i for i, b in enumerate(known) if b is not None]
    last_of = {known[i]: i for i in products}
    at: int | None = None
    ends = sorted((i, b) for b, i in last_of.items())
    begin = next(i for i, op in enumerate(ops) if op.kind == "embed") + 1
    select = next(i for i, op in enumerate(ops) if op.kind == "select")
    bounds = []
    for n, (i, b) in enumerate(ends):
        end = select if n + 1 == len(ends) else _next_norm(ops, i)
        bounds.append((begin, end, b))
        begin = end
    for i in range(len(ops)):
        at = next((b for low, high, b in bounds if low <= i < high), None)
        yield at


def _next_norm(ops: Sequence[Op], i: int) -> int:
    """Where the block behind product i ends: a norm that adds to the residual still belongs to it."""
    j = i + 1
    while j < len(ops) and ops[j].kind == "rmsnorm" and ops[j].args[2] is not None:
        j += 1
    return j


def signature(op: Op) -> object:
    """The same for operations that take the same buffers, and matrices of one type and shape."""
    buffers = tuple((a.root, a.offset, a.width) if isinstance(a, Buffer) else None for a in (op.out, *op.args))
    shapes = tuple((w.type, w.rows, w.cols) for w in weights_in(op))
    caches = tuple((s.n_kv, s.head_dim_k, s.head_dim_v) for s in (op.out, *op.args) if isinstance(s, KVSpec))
    angles = tuple(id(a) for a in (op.out, *op.args) if isinstance(a, Angles))
    params = {} if op.kind == "observe" else op.params  # every sum is its own
    return op.kind, buffers, shapes, caches, angles, tuple(sorted(params.items()))


def vectors_in(ops: Sequence[Op]) -> dict[int, int]:
    """Bytes on a GPU, by identity."""
    seen: dict[int, int] = {}
    for op in ops:
        for a in (op.out, *op.args):
            if isinstance(a, Vector):
                seen[id(a)] = padded(4 * a.data.size)
            elif isinstance(a, Angles):
                tables = 1 if a.inv_freq_long is None else 2
                seen[id(a)] = tables * padded(8 * a.inv_freq.size)
        if op.kind == "observe" and op.params["sums"] is not None:
            seen[id(op.params["sums"])] = padded(op.params["sums"].nbytes)
    return seen
