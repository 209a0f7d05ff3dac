"""One thread: GB/s of matrix-vector and GMAC/s of matrix-matrix products per quantised format, beside the machine's peaks.

python bench/kernels_quick.py [--isa avx2] [--columns 1 2 4 8 32 512] [--rows 4096] [--cols 4096] [format ...]
Column 1 is the matrix-vector kernel in GB/s over a matrix larger than the caches; the others are GMAC/s.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/kernels"))
from quant_lib import GEMM, GEMV, QUANTS, Activations, Library, aligned, built_isas, compile_library  # noqa: E402
from quant_reference import random_raw  # noqa: E402

READ = r"""
#include <stdint.h>
uint64_t read_sum(const uint64_t *p, long n) {
    uint64_t s[32] = {0};
    for (long i = 0; i < n; i += 32) {
        __builtin_prefetch(p + i + 512); __builtin_prefetch(p + i + 520);
        __builtin_prefetch(p + i + 528); __builtin_prefetch(p + i + 536);
        for (int j = 0; j < 32; j++) s[j] += p[i + j];
    }
    uint64_t t = 0;
    for (int j = 0; j < 32; j++) t += s[j];
    return t;
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


def read_bandwidth(tmp: Path) -> float:
    (tmp / "read.c").write_text(READ)
    import subprocess

    subprocess.run(
        ["gcc", "-O3", "-march=native", "-shared", "-fPIC", tmp / "read.c", "-o", tmp / "read.so"], check=True
    )
    f = ctypes.CDLL(str(tmp / "read.so")).read_sum
    f.argtypes = [ctypes.c_void_p, ctypes.c_long]
    data = np.ones(32 << 20, np.uint64)
    return data.nbytes / median_seconds(lambda: f(data.ctypes.data, data.size), 1.0) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("formats", nargs="*", default=list(QUANTS))
    parser.add_argument("--isa", default=None)
    parser.add_argument("--columns", type=int, nargs="*", default=[1, 2, 4, 8, 32, 512])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--cols", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=0.5)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        tmp = Path(name)
        lib = Library(compile_library(tmp, built_isas(), False), built_isas(), False)
        isa = args.isa or list(lib.sets)[-1]
        print(f"{isa}, one core reads {read_bandwidth(tmp):.1f} GB/s; n = 1: GB/s, else GMAC/s")
        print(f"{'':8}" + "".join(f"{n:>8}" for n in args.columns) + "    pack GB/s")
        for f in (QUANTS[x] for x in args.formats):
            k, blocks = args.cols, args.cols // f.block
            raw = random_raw(f.lower, rng, 256, blocks, f.bytes)
            packed = lib.pack(f, np.tile(raw, (args.rows // 256, 1)), k)[:-64]
            pack_s = median_seconds(lambda f=f, raw=raw, k=k: lib.pack(f, raw, k), 0.05)
            copies = max(1, (96 << 20) // len(packed))
            matrix = aligned(copies * len(packed))
            for c in range(copies):
                matrix[c * len(packed) : (c + 1) * len(packed)] = packed
            n_max = max(args.columns)
            codes = rng.integers(-127, 128, (n_max, k), dtype=np.int8)
            act = Activations.of(codes, np.full((n_max, blocks), 0.01, np.float32))
            a, panels = act.struct(), args.rows // 16
            out = aligned(4 * max(n_max, copies) * (args.rows + 16))
            gemv = GEMV(lib.dll.hkt_kernel(lib.sets[isa], f.index, 0))
            gemm = GEMM(lib.dll.hkt_kernel(lib.sets[isa], f.index, 1))
            line = f"{f.lower:8}"
            for n in args.columns:
                p = ctypes.addressof(a)
                if n == 1:
                    s = median_seconds(
                        lambda: gemv(matrix.ctypes.data, panels * copies, k, p, out.ctypes.data), args.seconds
                    )
                    line += f"{len(matrix) / s / 1e9:8.1f}"
                else:
                    reps = copies if n < 16 else 1

                    def run() -> None:
                        for c in range(reps):
                            w = matrix.ctypes.data + c * len(packed)
                            gemm(w, panels, k, p, n, out.ctypes.data, args.rows + 16, lib.scratch.ctypes.data)

                    line += f"{reps * args.rows * k * n / median_seconds(run, args.seconds) / 1e9:8.1f}"
            print(f"{line}{raw.nbytes / pack_s / 1e9:10.2f}", flush=True)


if __name__ == "__main__":
    main()
