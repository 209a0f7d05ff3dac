"""The KV cache on the device: types, and how a page is laid out (csrc/cuda/hk_cache.cuh)."""

from __future__ import annotations

from typing import Any

KV_TYPES = {"f16": 0, "q8_0": 1, "q4_0": 2}


def cache_struct(
    pages: int, page_bytes: int, block_offset: int, n_kv: int, dim_k: int, dim_v: int, kv_type: str
) -> dict[str, Any]:
    """The struct of a block's cache."""
    return {
        "pages": pages,
        "page_bytes": page_bytes,
        "block_offset": block_offset,
        "n_kv": n_kv,
        "dim_k": dim_k,
        "dim_v": dim_v,
        "type": KV_TYPES[kv_type],
    }


def cache_head_bytes(kv_type: str, dim_k: int, dim_v: int) -> int:
    """Bytes of one KV head in one page of 128 tokens (csrc/cuda/hk_cache.cuh)."""

    def plane(dim: int) -> int:
        codes = {"f16": 2 * dim, "q8_0": dim, "q4_0": dim // 2}[kv_type]
        return 128 * (codes + (0 if kv_type == "f16" else dim // 16))

    return plane(dim_k) + plane(dim_v)
