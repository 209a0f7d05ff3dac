"""Builds the C kernels into a shared library and drives them through ctypes; shared by the tests and the bench."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cbuild import gcc
from guarded import at_guard, guarded

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
CFLAGS = ["-std=gnu11", "-O3", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", f"-I{CSRC}"]

SHIM = r"""
#include "cpu/hk_cpu.h"
#include <stdlib.h>
#include <string.h>
typedef void (*fill_fn)(hk_cpu_set *);
static const struct { const char *name; fill_fn fill, floats; } isas[] = { %(isas)s };
static hk_cpu_set sets[16];
/* A set of the scalar kernels under those of one instruction set alone, so that nothing can fall through unseen. */
int hkt_fill(int i, const char *name) {
    for (size_t j = 0; j < sizeof isas / sizeof *isas; j++)
        if (!strcmp(isas[j].name, name)) {
            memset(&sets[i], 0, sizeof sets[i]);
            hk_fill_quant_scalar(&sets[i]);
            isas[j].fill(&sets[i]);
            isas[j].floats(&sets[i]);
            return 0;
        }
    return -1;
}
int hkt_cpu_fill(int i) { return hk_cpu_fill(i, &sets[i]); }
void *hkt_kernel(int i, int t, int which) {
    hk_type_kernels *k = &sets[i].type[t];
    return which == 0 ? (void *)k->gemv : which == 1 ? (void *)k->gemm : which == 2 ? (void *)k->dequant
                                                                                  : (void *)k->gemv_raw;
}
void *hkt_to_tiles(int i) { return (void *)sets[i].op.to_tiles; }
const char *hkt_origin(int i, int t, int which) {
    hk_type_kernels *k = &sets[i].type[t];
    return which == 0 ? k->gemv_isa : which == 1 ? k->gemm_isa : k->dequant_isa;
}
"""


@dataclass(frozen=True)
class Format:
    """A line of hk_types.def."""

    index: int
    name: str
    lower: str
    gguf_id: int
    block: int
    bytes: int
    scale_bytes: int
    act: str


def formats() -> list[Format]:
    text = (CSRC / "formats/hk_types.def").read_text()
    rows = re.findall(r"^HK_TYPE\((\w+),\s*(\w+),\s*(\d+),\s*(\d+),\s*(\d+),\s*(\d+),\s*(\w+)\)", text, re.M)
    return [Format(i, n, low, int(g), int(b), int(y), int(s), a) for i, (n, low, g, b, y, s, a) in enumerate(rows)]


FORMATS = {f.lower: f for f in formats()}
QUANTS = {k: f for k, f in FORMATS.items() if f.act != "F32"}


def isa_flags() -> dict[str, list[str]]:
    """The instruction-set flags that CMakeLists.txt gives each folder."""
    text = (ROOT / "CMakeLists.txt").read_text()
    flags: dict[str, list[str]] = {}
    for isa, value in re.findall(r"^set\(HK_ISA_FLAGS_(\w+) (.*)\)$", text, re.M):
        expanded = re.sub(r"\$\{HK_ISA_FLAGS_(\w+)\}", lambda m: " ".join(flags[m.group(1)]), value)
        flags[isa] = [x for x in expanded.replace('"', "").split() if x]
    return flags


def built_isas() -> list[str]:
    return [isa for isa in isa_flags() if (CSRC / "cpu" / isa / "quant.c").exists()]


def exact_isas() -> list[str]:
    """Those whose results are the same bits."""
    return [isa for isa in built_isas() if isa != "amxbf16"]


def compile_library(tmp: Path, isas: list[str], emulate: bool) -> Path:
    """Every kernel source of `isas` in one library; emulate: on AVX2 alone."""
    flags, defines = isa_flags(), [f"-DHK_BUILT_{isa.upper()}" for isa in isas if not emulate]
    table = ",".join(f'{{"{isa}", hk_fill_quant_{isa}, hk_fill_float_{isa}}}' for isa in isas)
    stubs = "\n".join(f"void hk_fill_float_{isa}(hk_cpu_set *set) {{ (void)set; }}" for isa in isas if isa != "amxbf16")
    shim = tmp / "shim.c"
    shim.write_text(SHIM % {"isas": table} + stubs)
    jobs = [(shim, []), (CSRC / "cpu/hk_cpu.c", defines)]
    jobs += [(path, []) for path in sorted((CSRC / "formats").glob("*.c"))]
    jobs += [(CSRC / "cpu/scalar" / name, []) for name in ("quant.c", "dequant.c")]
    native = ["-O1", "-mavx2", "-mfma", "-mf16c", "-w", f"-I{Path(__file__).parent / 'emulated'}"]
    for isa in isas:
        if isa != "scalar":
            jobs.append((CSRC / "cpu" / isa / "quant.c", native if emulate else flags[isa]))
        if isa == "amxbf16":  # its float half makes what its products read
            jobs.append((CSRC / "cpu" / isa / "float.c", native if emulate else flags[isa]))
    objects = []
    for i, (path, extra) in enumerate(jobs):
        objects.append(tmp / f"{i}.o")
        gcc(*CFLAGS, *extra, "-c", str(path), "-o", str(objects[-1]))
    library = tmp / "libhk.so"
    gcc("-shared", "-o", str(library), *map(str, objects), "-lm")
    return library


class Act(ctypes.Structure):
    _fields_ = [
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("codes_stride", ctypes.c_int64),
        ("scales_stride", ctypes.c_int64),
        ("sums_stride", ctypes.c_int64),
        ("x_stride", ctypes.c_int64),
        ("tiles", ctypes.c_void_p),
        ("tiles_stride", ctypes.c_int64),
    ]


P, I64, INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
GEMV = ctypes.CFUNCTYPE(None, P, I64, I64, P, P)
GEMM = ctypes.CFUNCTYPE(None, P, I64, I64, P, I64, P, I64, P)
GEMV_RAW = ctypes.CFUNCTYPE(None, P, I64, I64, I64, P, INT, P, I64)
DEQUANT = ctypes.CFUNCTYPE(None, P, I64, P)
TO_TILES = ctypes.CFUNCTYPE(None, P, I64, P)


@dataclass
class Activations:
    """n quantised columns."""

    codes: np.ndarray
    scales: np.ndarray
    sums: np.ndarray

    @classmethod
    def of(cls, codes: np.ndarray, scales: np.ndarray) -> Activations:
        n, k = codes.shape
        store = guarded(n * ((k + 63) & ~63), 0).view(np.int8).reshape(n, -1)
        store[:, :k] = codes
        sums = codes.astype(np.int32).reshape(n, k // 16, 16).sum(axis=2).astype(np.int16)
        return cls(store[:, :k], at_guard(np.ascontiguousarray(scales, np.float32)), at_guard(sums))

    def struct(self, column: int = 0) -> Act:
        c, s, t = self.codes[column:], self.scales[column:], self.sums[column:]
        return Act(
            c.ctypes.data, s.ctypes.data, t.ctypes.data, None, c.strides[0], s.strides[0] // 4, t.strides[0] // 2, 0
        )


class Library:
    """The kernels of one shared library, by set name."""

    def __init__(self, path: Path, isas: list[str], emulate: bool) -> None:
        self.dll = dll = ctypes.CDLL(str(path))
        dll.hkt_kernel.restype = dll.hkt_to_tiles.restype = P
        dll.hkt_origin.restype = dll.hk_cpu_set_name.restype = ctypes.c_char_p
        dll.hk_pack.argtypes = [INT, P, I64, I64, I64, I64, I64, P]
        self.sets: dict[str, int] = {}
        have, names = dll.hk_cpu_features(), [dll.hk_cpu_set_name(i).decode() for i in range(dll.hk_cpu_n_sets())]
        for isa in isas:
            i = names.index(isa)
            if (emulate or not dll.hk_cpu_set_requires(i) & ~have) and dll.hkt_fill(i, isa.encode()) == 0:
                self.sets[isa] = i
        self.scratch = guarded(512 * 1024 + 64, 0xA5)

    def origin(self, isa: str, f: Format, which: int) -> str:
        return self.dll.hkt_origin(self.sets[isa], f.index, which).decode()

    def tiles(self, isa: str, x: np.ndarray, stride: int) -> np.ndarray:
        """Float columns [n][K] as tiles of bf16, `stride` elements from 16 columns to the next."""
        to_tiles = TO_TILES(self.dll.hkt_to_tiles(self.sets[isa]))
        out = guarded(-(-len(x) // 16) * stride * 2).view(np.uint16)
        for i, row in enumerate(np.ascontiguousarray(x, np.float32)):
            to_tiles(row.ctypes.data, len(row), out[i // 16 * stride + i % 16 * 32 :].ctypes.data)
        return out

    def panel_bytes(self, f: Format, cols: int) -> int:
        blocks = cols // f.block
        scale = (blocks * 16 * f.scale_bytes + 63) & ~63
        return scale + ((blocks * 16 * (f.bytes - f.scale_bytes) + 63) & ~63)

    def pack(self, f: Format, raw: np.ndarray, cols: int) -> np.ndarray:
        rows = raw.shape[0]
        panels = (rows + 15) // 16
        out, raw = guarded(panels * self.panel_bytes(f, cols) + 64, 0xC3), at_guard(raw, 2)
        self.dll.hk_pack(f.index, raw.ctypes.data, raw.strides[0], rows, cols, 0, panels, out.ctypes.data)
        assert (out[-64:] == 0xC3).all(), "hk_pack wrote past its panels"
        return at_guard(out[:-64])

    def gemv(self, isa: str, f: Format, packed: np.ndarray, cols: int, act: Activations, column: int = 0) -> np.ndarray:
        panels = len(packed) // self.panel_bytes(f, cols)
        out = guarded(panels * 64 + 64, 0xFF).view(np.float32)
        call = GEMV(self.dll.hkt_kernel(self.sets[isa], f.index, 0))
        a = act.struct(column)
        call(packed.ctypes.data, panels, cols, ctypes.addressof(a), out.ctypes.data)
        assert (out[-16:].view(np.uint32) == 0xFFFFFFFF).all(), "gemv wrote past its rows"
        return out[:-16].copy()

    def gemm(self, isa: str, f: Format, packed: np.ndarray, cols: int, act: Activations | Act, n: int) -> np.ndarray:
        panels = len(packed) // self.panel_bytes(f, cols)
        stride = panels * 16 + 16
        out = guarded(n * stride * 4, 0xFF).view(np.float32).reshape(n, stride)
        call = GEMM(self.dll.hkt_kernel(self.sets[isa], f.index, 1))
        a = act.struct() if isinstance(act, Activations) else act
        call(
            packed.ctypes.data, panels, cols, ctypes.addressof(a), n, out.ctypes.data, stride, self.scratch.ctypes.data
        )
        assert (out[:, -16:].view(np.uint32) == 0xFFFFFFFF).all(), "gemm wrote past its rows"
        assert (self.scratch[-64:] == 0xA5).all(), "gemm wrote past its scratch"
        return out[:, :-16].copy()

    def gemv_raw(self, isa: str, f: Format, raw: np.ndarray, cols: int, act: Activations, column: int) -> np.ndarray:
        """A column, which must come out the same beside its neighbour: the next one, or the one before the last."""
        rows, raw = raw.shape[0], at_guard(raw, 2)
        padded = (rows + 15) // 16 * 16
        out = guarded(2 * (padded + 16) * 4, 0xFF).view(np.float32).reshape(2, padded + 16)
        call = GEMV_RAW(self.dll.hkt_kernel(self.sets[isa], f.index, 3))
        a = act.struct(column)
        call(raw.ctypes.data, raw.strides[0], rows, cols, ctypes.addressof(a), 1, out.ctypes.data, padded + 16)
        assert (out[1].view(np.uint32) == 0xFFFFFFFF).all(), "gemv_raw wrote a column more"
        alone, first = out[0, :rows].copy(), max(0, min(column, len(act.codes) - 2))
        a = act.struct(first)
        if len(act.codes) > 1:
            call(raw.ctypes.data, raw.strides[0], rows, cols, ctypes.addressof(a), 2, out.ctypes.data, padded + 16)
            assert np.array_equal(out[column - first, :rows], alone, equal_nan=True)
        used = out[: min(2, len(act.codes))]
        assert (used[:, padded:].view(np.uint32) == 0xFFFFFFFF).all(), "gemv_raw wrote past its rows"
        assert not used[:, rows:padded].any(), "rows that do not exist are not zero"
        return alone

    def dequant(self, isa: str, f: Format, raw: np.ndarray) -> np.ndarray:
        blocks, raw = raw.size // f.bytes, at_guard(raw, 2)
        out = guarded(blocks * f.block * 4 + 64, 0xFF).view(np.float32)
        DEQUANT(self.dll.hkt_kernel(self.sets[isa], f.index, 2))(raw.ctypes.data, blocks, out.ctypes.data)
        assert (out[-16:].view(np.uint32) == 0xFFFFFFFF).all(), "dequant wrote past its end"
        return out[:-16].copy()
