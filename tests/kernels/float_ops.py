"""The table of float operations of one instruction set, callable with NumPy arrays."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_uint32, c_void_p

import numpy as np
from cbuild import build
from guarded import at_guard, guarded

SILU, GELU = 0, 1
NORM, NEOX = 0, 1
KV = {"f16": 0, "q8_0": 1, "q4_0": 2, "f32": 3}
PAGE = 128
FLOAT_TYPES = {"f32": 0, "f16": 1, "bf16": 2}
N_TYPES = 16

_PTR = c_void_p


class TypeKernels(Structure):
    _fields_ = [
        ("gemv", _PTR),
        ("gemm", _PTR),
        ("dequant", _PTR),
        ("gemv_isa", c_char_p),
        ("gemm_isa", c_char_p),
        ("dequant_isa", c_char_p),
        ("gemv_raw", _PTR),
        ("gemv_raw_isa", c_char_p),
    ]


def _fn(result: type | None, *args: type) -> type:
    return ctypes.CFUNCTYPE(result, *args)


class Ops(Structure):
    _fields_ = [
        ("rmsnorm", _fn(None, _PTR, _PTR, c_int64, c_float, _PTR)),
        ("add", _fn(None, _PTR, _PTR, _PTR, c_int64)),
        ("scale", _fn(None, _PTR, _PTR, c_float, c_int64)),
        ("glu", _fn(None, _PTR, _PTR, _PTR, c_int64, c_int)),
        ("softcap", _fn(None, _PTR, _PTR, c_float, c_int64)),
        ("rope", _fn(None, _PTR, c_int64, _PTR, c_int)),
        ("max", _fn(c_float, _PTR, c_int64)),
        ("argmax", _fn(c_int64, _PTR, c_int64, POINTER(c_float), POINTER(c_double), POINTER(c_int))),
        ("topk", _fn(c_int64, _PTR, c_int64, c_int64, _PTR, _PTR, POINTER(c_int))),
        ("quantize", _fn(None, _PTR, c_int64, _PTR, _PTR, _PTR) * 3),
        ("quantize_pair", _fn(None, _PTR, c_int64, _PTR, _PTR, _PTR, c_int64, c_int64, c_int64)),
        ("to_tiles", _fn(None, _PTR, c_int64, _PTR)),
        ("kv_store_k", _fn(None, c_int, _PTR, c_int64, c_int64, _PTR)),
        ("kv_store_v", _fn(None, c_int, _PTR, c_int64, c_int64, _PTR)),
        (
            "attend_page",
            _fn(
                None,
                *(c_int, _PTR, _PTR, c_int64, c_int64, _PTR, c_int64, c_int64, _PTR, _PTR, c_float),
                *(_PTR, _PTR, _PTR, c_int64, _PTR, _PTR),
            ),
        ),
    ]


class CpuSet(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("requires", c_uint32),
        ("type", TypeKernels * N_TYPES),
        ("op", Ops),
        ("op_isa", c_char_p),
        ("batch_panels", c_int32),
        ("batch_columns", c_int32),
    ]


class Act(Structure):
    _fields_ = [
        *((name, _PTR) for name in ("codes", "scales", "sums", "x")),
        *((name, c_int64) for name in ("codes_stride", "scales_stride", "sums_stride", "x_stride")),
        ("tiles", _PTR),
        ("tiles_stride", c_int64),
    ]


GEMV = _fn(None, _PTR, c_int64, c_int64, POINTER(Act), _PTR)
GEMM = _fn(None, _PTR, c_int64, c_int64, POINTER(Act), c_int64, _PTR, c_int64, _PTR)
DEQUANT = _fn(None, _PTR, c_int64, _PTR)


def aligned(shape: int | tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
    """Full of NaN, starts on a 64-byte boundary, ends at a guard page."""
    n = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return guarded(n).view(dtype).reshape(shape)


def as_f32(a: np.ndarray) -> np.ndarray:
    out = aligned(a.shape)
    out[...] = a
    return out


def ptr(a: np.ndarray | None) -> int | None:
    return None if a is None else a.ctypes.data


def pack_panels(rows: np.ndarray) -> np.ndarray:
    """rows (n, K) of 2- or 4-byte elements -> panels of 16 rows, each [K][16] and padded to 64 bytes."""
    n, k = rows.shape
    panels = -(-n // 16)
    size = (16 * k * rows.itemsize + 63) // 64 * 64 // rows.itemsize
    out = aligned((panels, size), rows.dtype.type)
    out[...] = 0
    for p in range(panels):
        part = rows[16 * p : 16 * p + 16]
        full = np.zeros((16, k), rows.dtype)
        full[: len(part)] = part
        out[p, : 16 * k] = full.T.reshape(-1)
    return out


class FloatOps:
    """One instruction set's operations."""

    def __init__(self, isa: str) -> None:
        lib = build(isa, (f"cpu/{isa}/float.c", "cpu/kv_layout.c"))
        if isinstance(lib, str):
            raise LookupError(lib)
        self.isa = isa
        self.set = CpuSet()
        getattr(lib, f"hk_fill_float_{isa}")(byref(self.set))
        self.op = self.set.op
        self._planes = {"k": lib.hk_kv_k_plane_bytes, "v": lib.hk_kv_v_plane_bytes}
        for fn in self._planes.values():
            fn.restype, fn.argtypes = c_int64, [c_int, c_int64]
        self.scratch = aligned(512 * 1024, np.uint8)

    def plane(self, which: str, kv: str, dim: int) -> np.ndarray:
        return aligned(int(self._planes[which](KV[kv], dim)), np.uint8)

    def matmul(self, kind: str, panels: np.ndarray, k: int, x: np.ndarray, gemv: bool = False) -> np.ndarray:
        n, cols = len(panels), len(x)
        act = Act(x=ptr(x), x_stride=x.strides[0] // 4)
        out = aligned((cols, 16 * n))
        kernels = self.set.type[FLOAT_TYPES[kind]]
        if not gemv:
            GEMM(kernels.gemm)(ptr(panels), n, k, act, cols, ptr(out), 16 * n, ptr(self.scratch))
            return out
        for c in range(cols):
            one = Act(x=ptr(x[c]), x_stride=x.strides[0] // 4)
            GEMV(kernels.gemv)(ptr(panels), n, k, one, ptr(out[c]))
        return out

    def dequant(self, kind: str, raw: np.ndarray) -> np.ndarray:
        out, raw = aligned(raw.size), at_guard(raw, 2)
        DEQUANT(self.set.type[FLOAT_TYPES[kind]].dequant)(ptr(raw), raw.size, ptr(out))
        return out

    def attend(
        self,
        kv: str,
        pages: list[tuple[np.ndarray, np.ndarray]],
        dims: tuple[int, int],
        q: np.ndarray,
        ranges: list[tuple[np.ndarray, np.ndarray]],
        cap: float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """m, l and acc after all pages."""
        n = len(q)
        m, total, acc = as_f32(np.full(n, -np.inf)), as_f32(np.zeros(n)), as_f32(np.zeros((n, dims[1])))
        behind = [k for k, _ in pages[1:]] + [None]
        for (k, v), (lo, hi), following in zip(pages, ranges, behind, strict=True):
            lo, hi = (at_guard(a.astype(np.int32), 4) for a in (lo, hi))
            self.op.attend_page(
                *(KV[kv], ptr(k), ptr(v), dims[0], dims[1], ptr(q), q.strides[0] // 4, n, ptr(lo), ptr(hi), cap),
                *(ptr(m), ptr(total), ptr(acc), dims[1], None if following is None else ptr(following)),
                ptr(self.scratch),
            )
        return m, total, acc
