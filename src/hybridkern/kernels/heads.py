"""Head norm, rotation and the store of keys and values as one operation over heads, for the sets that fuse them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .interface import Angles, Buffer, KVSpec, Op, Vector

HEAD_KINDS = {"head_norm", "rope", "store_kv"}


def overlap(a: Buffer, b: Buffer) -> bool:
    """Whether the two share memory."""
    return a.root is b.root and a.offset < b.offset + b.width and b.offset < a.offset + a.width


def same(a: Buffer, b: Buffer) -> bool:
    """Whether the two are the same columns."""
    return a.root is b.root and a.offset == b.offset and a.width == b.width


@dataclass
class Stream:
    """Heads of one buffer in a fused operation over heads. store: 0 none, 1 keys, 2 values."""

    x: Buffer
    head_dim: int
    norm: Vector | None = None
    eps: float = 0.0
    angles: Angles | None = None
    layout: str = "norm"
    store: int = 0


class HeadGroup(Protocol):
    """What a fused operation over heads has."""

    streams: list[Stream]
    kv: KVSpec | None


def join_heads(group: HeadGroup, op: Op, most: int) -> bool:
    """Adds an operation over heads to a group of at most so many streams; False where order or capacity forbid it."""
    if op.kind == "store_kv":
        if group.kv is not None or same(op.args[0], op.args[1]):
            return False
        kv: KVSpec = op.out
        k, v = _stream(group, op.args[0], kv.head_dim_k, most), _stream(group, op.args[1], kv.head_dim_v, most)
        if k is None or v is None:
            return False
        k.store, v.store, group.kv = 1, 2, kv
        return True
    s = _stream(group, op.args[0], op.params["head_dim"], most)
    if s is None or s.store or s.angles is not None:
        return False
    if op.kind == "rope":
        s.angles, s.layout = op.args[1], op.params["layout"]
        return True
    if s.norm is not None:
        return False
    s.norm, s.eps = op.args[1], op.params["eps"]
    return True


def _stream(group: HeadGroup, x: Buffer, head_dim: int, most: int) -> Stream | None:
    for s in group.streams:
        if same(s.x, x) and s.head_dim == head_dim:
            return s
        if overlap(s.x, x):
            return None
    if len(group.streams) == most:
        return None
    group.streams.append(Stream(x, head_dim))
    return group.streams[-1]
