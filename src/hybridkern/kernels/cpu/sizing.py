"""What a model takes on the CPU, to the byte, without packing anything: the tape that counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridkern.kernels import _cpu
from hybridkern.kernels.interface import Buffer, KVSpec, Op, Weight

from .build import CacheLayout, TapeBuilder, padded
from .fusion import fuse
from .selection import chosen_name, table_named
from .weights import packed_bytes

__all__ = ["cache_page_bytes", "packed_bytes", "tape_bytes"]
_KV_TYPES = {"f16": 0, "q8_0": 1, "q4_0": 2, "f32": 3}


class _NoWeights:
    """Where a matrix would lie."""

    def place(self, w: Weight) -> tuple[int, int]:
        return 64, 0


class _Counting(TapeBuilder):
    """Allocates nothing; nbytes is what a TapeBuilder would have."""

    def _memory(self, nbytes: int) -> int:
        self.nbytes += nbytes
        return 64


def _planes(specs: Sequence[KVSpec], kv_type: str) -> tuple[dict[int, tuple[int, int, int]], int]:
    kv, at = _KV_TYPES[kv_type], 0
    planes: dict[int, tuple[int, int, int]] = {}
    for s in specs:
        k, v = _cpu.kv_plane_bytes(kv, s.head_dim_k)[0], _cpu.kv_plane_bytes(kv, s.head_dim_v)[1]
        planes[s.block] = (at, k, v)
        at += s.n_kv * (k + v)
    return planes, at


def cache_page_bytes(specs: Sequence[KVSpec], kv_type: str) -> int:
    """Of a page of 128 tokens of these blocks; 0 for none."""
    return padded(_planes(specs, kv_type)[1], 4096) if specs else 0


def tape_bytes(
    segments: Sequence[Sequence[Op]],
    logits: Buffer | None,
    specs: Sequence[KVSpec],
    *,
    kv_type: str,
    max_pages: int,
    max_rows: int,
    max_outputs: int,
) -> int:
    """Bytes of the buffers of a tape of these segments, which has selected early what outputs need. logits: of the last
    one, None if they are made elsewhere."""
    planes, size = _planes(specs, kv_type)
    cache = CacheLayout(_KV_TYPES[kv_type], 4096, padded(max(size, 4096), 4096), planes, max_pages)
    weights: Any = _NoWeights()
    builder = _Counting(table_named(chosen_name()), weights, cache, logits, max_rows, max_outputs)
    last = len(segments) - 1
    builder.build([fuse(ops, logits if k == last else None) for k, ops in enumerate(segments)])
    return builder.nbytes
