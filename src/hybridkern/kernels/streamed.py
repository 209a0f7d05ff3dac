"""Weights that stay in main memory while another device computes with them: which, and how they lie there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .interface import Weight

Key = tuple[int, str, int, int]


def key_of(w: Weight) -> Key:
    """What tells one matrix from another: its memory and its shape."""
    return w.data.ctypes.data, w.type, w.rows, w.cols


@dataclass(frozen=True)
class HostSource:
    """Where a matrix lies in main memory: as the file's rows, or, `packed`, as panels of the CPU set. read_only: it may
    be mapped so. keep: what must live as long as it is used."""

    address: int
    packed: bool
    read_only: bool = False
    keep: Any = None


@dataclass(frozen=True)
class Streamed:
    """Matrices of blocks: of each block, in the order of computing, and where they are, by `key_of`. depth: blocks that
    the other device holds at a time; kept: whether the last of them are wanted between two passes."""

    blocks: Sequence[Sequence[Weight]]
    sources: Mapping[Key, HostSource]
    depth: int = 2
    kept: bool = False
