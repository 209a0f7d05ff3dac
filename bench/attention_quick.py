#!/usr/bin/env python3
"""One thread: how fast attention of one token reads a KV cache, by kind of cache, from memory and from the caches.

python bench/attention_quick.py [--isa avx2] [--dim 64] [--group 4] [--mib 192]

Processor time of the thread, best of four; GB/s of the planes of K and V. group: query heads that share a KV head. With
more heads than one tile takes (6) it is the path of prefill.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/kernels"))
from cbuild import ROOT, cmake_flags

CACHES = ("f16", "q8_0", "q4_0")
DRIVER = r"""
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include "cpu/hk_cpu.h"
#define HUGE ((int64_t)2 << 20)
static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
/* GB/s, best of four passes over n pages of one KV head; cached: over the first of them again and again */
double read_rate(int kv, int dim, int group, int64_t bytes, int cached) {
    static hk_cpu_set set;
    static float q[128 * 896], acc[128 * 896];
    static float m[128], l[128];
    static int32_t lo[128], hi[128];
    hk_fill_float_%(isa)s(&set);
    const int64_t k_bytes = hk_kv_k_plane_bytes(kv, dim), page = k_bytes + hk_kv_v_plane_bytes(kv, dim);
    const int64_t n = bytes / page;
    uint8_t *raw = mmap(NULL, n * page + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *scratch = aligned_alloc(64, HK_ATTN_SCRATCH);
    double best = 0;
    if (raw == MAP_FAILED || !scratch)
        return -1;
    uint8_t *planes = (uint8_t *)(((uintptr_t)raw + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    madvise(planes, n * page, MADV_HUGEPAGE);
    memset(planes, 0x11, n * page);
    for (int i = 0; i < group * dim; i++)
        q[i] = 0.01f * (i %% 37 - 18);
    for (int pass = 0; pass < 4; pass++) {
        double start = seconds();
        for (int64_t i = 0; i < n; i++) {
            const uint8_t *k = planes + (cached ? 0 : i) * page;
            for (int r = 0; r < group; r++)
                m[r] = -INFINITY, l[r] = 0, lo[r] = 0, hi[r] = HK_PAGE;
            memset(acc, 0, sizeof(float) * group * dim);
            set.op.attend_page(kv, k, k + k_bytes, dim, dim, q, dim, group, lo, hi, 0, m, l, acc, dim,
                               i + 1 < n ? k + (cached ? 0 : page) : NULL, scratch);
        }
        double rate = n * page / (seconds() - start) / 1e9;
        best = rate > best ? rate : best;
    }
    free(scratch);
    munmap(raw, n * page + HUGE);
    return best;
}
"""


def driver(tmp: Path, isa: str) -> ctypes.CDLL:
    """The float kernels of one instruction set, and the loop around them."""
    (tmp / "driver.c").write_text(DRIVER % {"isa": isa})
    sources = [tmp / "driver.c", ROOT / f"csrc/cpu/{isa}/float.c", ROOT / "csrc/cpu/kv_layout.c"]
    flags = ["-O3", "-std=gnu11", "-ffp-contract=off", "-fno-math-errno", f"-I{ROOT / 'csrc'}", *cmake_flags(isa)]
    library = tmp / "driver.so"
    subprocess.run(["gcc", "-shared", "-fPIC", *flags, *map(str, sources), "-o", str(library), "-lm"], check=True)
    lib = ctypes.CDLL(str(library))
    lib.read_rate.restype = ctypes.c_double
    lib.read_rate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int]
    return lib


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isa", default="avx2", choices=("scalar", "avx2", "avx512"))
    parser.add_argument("--dim", type=int, default=64, help="head dimension, a multiple of 32 up to 896")
    parser.add_argument("--group", type=int, default=4, help="query heads of a KV head, at most 128")
    parser.add_argument("--mib", type=int, default=192)
    args = parser.parse_args()
    if not 1 <= args.group <= 128 or args.dim % 32 or not 32 <= args.dim <= 896:
        parser.error("1 to 128 query heads; a head dimension that is a multiple of 32, up to 896")
    with tempfile.TemporaryDirectory() as tmp:
        lib = driver(Path(tmp), args.isa)
        for kv, name in enumerate(CACHES):
            rates = [lib.read_rate(kv, args.dim, args.group, args.mib << 20, cached) for cached in (0, 1)]
            print(f"{name:5} {rates[0]:6.1f} GB/s from memory, {rates[1]:6.1f} from the caches")


if __name__ == "__main__":
    main()
