"""One thread: GB/s of matrix-vector, GMAC/s of matrix-matrix products per quantised format, and the machine's peaks.

python bench/kernels_quick.py [--isa avx2] [--columns 1 2 4 8 32 512] [--rows 4096] [--cols 4096] [format ...]
Column 1 is the matrix-vector kernel in GB/s over a matrix larger than the caches; the others are GMAC/s.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/kernels"))
from guarded import guarded
from quant_lib import (
    GEMM,
    GEMV,
    GEMV_RAW,
    QUANTS,
    Activations,
    Format,
    Library,
    built_isas,
    compile_library,
    exact_isas,
)
from quant_reference import random_raw

PEAKS = r"""
#include <immintrin.h>
#include <stdint.h>
uint64_t read_sum(const uint64_t *p, long n) {
    uint64_t s[32] = {0};
    for (long i = 0; i < n; i += 32) {
        for (int j = 0; j < 32; j += 8) __builtin_prefetch(p + i + j + 512);
        for (int j = 0; j < 32; j++) s[j] += p[i + j];
    }
    uint64_t t = 0;
    for (int j = 0; j < 32; j++) t += s[j];
    return t;
}
/* n rounds of 12 products of vectors of bytes that the instruction set has; returns the products of a round */
#ifdef __AVX512VNNI__
#define V __m512i
#define ROUND(acc) acc = _mm512_dpbusd_epi32(acc, w, x); __asm__ volatile("" : "+v"(acc));
#else
#define V __m256i
#define ROUND(acc) p = _mm256_maddubs_epi16(w, x); __asm__ volatile("" : "+x"(p)); \
    acc = _mm256_add_epi16(acc, p); __asm__ volatile("" : "+x"(acc));
#endif
int multiply(long n) {
    V acc[12] = {0}, w = {0}, x = {0}, p;
    (void)p;
    for (long i = 0; i < n; i++) {
        __asm__ volatile("" : "+x"(w), "+x"(x));
        _Pragma("GCC unroll 12") for (int j = 0; j < 12; j++) { ROUND(acc[j]) }
    }
    return 12 * sizeof(V);
}
"""


def median_seconds(run: Callable[[], object], budget: float) -> float:
    """Processor time of this thread, so that other work on the machine counts as little as it can."""
    times: list[float] = []
    run()
    while sum(times) < budget or len(times) < 3:
        start = time.thread_time()
        run()
        times.append(time.thread_time() - start)
    return statistics.median(times)


def peaks(tmp: Path) -> tuple[float, float]:
    """GB/s that one core reads, GMAC/s of its multiplier."""
    (tmp / "peaks.c").write_text(PEAKS)
    command = ["gcc", "-O3", "-march=native", "-shared", "-fPIC", str(tmp / "peaks.c"), "-o", str(tmp / "peaks.so")]
    subprocess.run(command, check=True)
    lib = ctypes.CDLL(str(tmp / "peaks.so"))
    lib.read_sum.argtypes, lib.multiply.argtypes = [ctypes.c_void_p, ctypes.c_long], [ctypes.c_long]
    data = np.ones(16 << 20, np.uint64)
    read = data.nbytes / median_seconds(lambda: lib.read_sum(data.ctypes.data, data.size), 0.3)
    multiply = (1 << 20) * lib.multiply(1) / median_seconds(lambda: lib.multiply(1 << 20), 0.3)
    return read / 1e9, multiply / 1e9


@dataclass
class Case:
    """One format: a matrix of many copies, larger than the caches, and its activations."""

    lib: Library
    isa: str
    f: Format
    rows: int
    k: int
    n_max: int

    def __post_init__(self) -> None:
        rng, blocks = np.random.default_rng(0), self.k // self.f.block
        self.raw = random_raw(self.f.lower, rng, 256, blocks, self.f.bytes)
        packed = self.lib.pack(self.f, np.tile(self.raw, (self.rows // 256, 1)), self.k)
        self.bytes, self.copies = len(packed), max(1, (96 << 20) // len(packed))
        self.matrix = guarded(self.copies * self.bytes)
        self.matrix.reshape(self.copies, -1)[:] = packed
        codes = rng.integers(-127, 128, (self.n_max, self.k), dtype=np.int8)
        self.act = Activations.of(codes, np.full((self.n_max, self.k // 32), 0.01, np.float32))
        self.struct = self.act.struct()
        if self.isa not in exact_isas():
            self.struct.tiles_stride = 16 * self.k + 16384
            self.tiles = self.lib.tiles(self.isa, 0.01 * codes, self.struct.tiles_stride)
            self.struct.tiles = self.tiles.ctypes.data
        self.out = guarded(4 * max(self.n_max, self.copies) * (self.rows + 16))
        self.gemv = GEMV(self.lib.dll.hkt_kernel(self.lib.sets[self.isa], self.f.index, 0))
        self.gemm = GEMM(self.lib.dll.hkt_kernel(self.lib.sets[self.isa], self.f.index, 1))

    def multiply(self, n: int) -> None:
        """The whole of it by one column; by a few; or one copy by many."""
        a, out, panels = ctypes.addressof(self.struct), self.out.ctypes.data, self.rows // 16
        if n == 1:
            self.gemv(self.matrix.ctypes.data, panels * self.copies, self.k, a, out)
            return
        for c in range(self.copies if n < 16 else 1):
            w = self.matrix.ctypes.data + c * self.bytes
            self.gemm(w, panels, self.k, a, n, out, self.rows + 16, self.lib.scratch.ctypes.data)

    def rate(self, n: int, seconds: float) -> float:
        """GB/s of one column, GMAC/s of several."""
        s = median_seconds(lambda: self.multiply(n), seconds)
        if n == 1:
            return len(self.matrix) / s / 1e9
        return (self.copies if n < 16 else 1) * self.rows * self.k * n / s / 1e9

    def raw_rate(self, seconds: float) -> float:
        """GB/s of raw rows by one column; 0 where the set has no kernel for them."""
        kernel = self.lib.dll.hkt_kernel(self.lib.sets[self.isa], self.f.index, 3)
        if not kernel:
            return 0.0
        copies = max(1, (96 << 20) // self.raw.nbytes)
        rows, call, a = np.tile(self.raw, (copies, 1)), GEMV_RAW(kernel), ctypes.addressof(self.struct)
        out = np.empty(len(rows) + 16, np.float32)
        s = median_seconds(
            lambda: call(rows.ctypes.data, rows.strides[0], len(rows), self.k, a, out.ctypes.data), seconds
        )
        return rows.nbytes / s / 1e9

    def pack_rate(self) -> float:
        return self.raw.nbytes / median_seconds(lambda: self.lib.pack(self.f, self.raw, self.k), 0.05) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("formats", nargs="*", default=list(QUANTS))
    parser.add_argument("--isa", default=None)
    parser.add_argument("--columns", type=int, nargs="*", default=[1, 2, 4, 8, 32, 512])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--cols", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=0.5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        tmp = Path(name)
        lib = Library(compile_library(tmp, built_isas(), False), built_isas(), False)
        isa = args.isa or [isa for isa in exact_isas() if isa in lib.sets][-1]
        read, multiply = peaks(tmp)
        print(f"{isa}, one core: reads {read:.1f} GB/s, multiplies {multiply:.1f} GMAC/s; n = 1: GB/s, else GMAC/s")
        print(f"{'':8}" + "".join(f"{n:>8}" for n in args.columns) + "  raw GB/s  pack GB/s")
        for f in args.formats:
            case = Case(lib, isa, QUANTS[f], args.rows, args.cols, max(args.columns))
            rates = "".join(f"{case.rate(n, args.seconds):8.1f}" for n in args.columns)
            print(f"{f:8}{rates}{case.raw_rate(args.seconds):10.1f}{case.pack_rate():11.2f}", flush=True)


if __name__ == "__main__":
    main()
