"""Times products on a GPU: matrix-vector in GB/s of weights, cold, and matrix products in TFLOP/s, in captured graphs.

Weights are random bytes. They rotate over more than 4 x L2.
    python bench/cuda/products.py --images FOLDER [--formats Q4_K,Q6_K] [--sweep] [--many]
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pycuda.driver as cuda

from hybridkern.kernels.cuda import launches, tiles
from hybridkern.kernels.cuda.driver import Event, Graph, Kernels, Memory, Stream, attribute
from hybridkern.kernels.cuda.launches import MATVEC_WARPS, Launch
from hybridkern.kernels.cuda.layout import LAYOUTS, device_bytes

REPEATS = 7
SHAPES = ((4096, 4096), (11008, 4096), (4096, 11008), (32000, 4096))


class Bench:
    """Memory and timing."""

    def __init__(self, images: Path) -> None:
        self.kernels = Kernels({p.stem: p.read_bytes() for p in [*images.glob("*.fatbin"), *images.glob("*.cubin")]})
        self.stream = Stream()
        self.processors = attribute(16)
        self.pool = Memory(3 << 30)
        # Zeros would draw less power, and run faster.
        noise = np.random.default_rng(0).integers(0, 256, 256 << 20, np.uint8)
        for at in range(0, self.pool.nbytes, noise.nbytes):
            self.stream.upload(self.pool.address + at, noise)
        self.scratch = Memory(1 << 30)
        self.stream.fill(self.scratch.address, 0, self.scratch.nbytes)
        x = np.random.default_rng(1).standard_normal(32 << 20, np.float32).astype(np.float16)
        self.stream.upload(self.scratch.address, x)
        self.stream.wait()
        self.counts = Memory(8)

    def step(self, n: int) -> dict[str, Any]:
        self.stream.upload(self.counts.address, np.array([n, n], np.int32))
        self.stream.wait()
        return {"counts": self.counts.address}

    def best(self, graph: Graph) -> float:
        """Seconds of one replay, the best of several."""
        graph.launch(self.stream)
        times = []
        for _ in range(REPEATS):
            start, end = Event(), Event()
            start.record(self.stream)
            graph.launch(self.stream)
            end.record(self.stream)
            times.append(end.since(start))
        return min(times) / 1e3

    def time(self, made: list[Launch], early: bool = True) -> float:
        graph = self.stream.capture(self.kernels, made, early)
        seconds = self.best(graph)
        graph.destroy()
        return seconds


def part(at: int, rows: int, out: int) -> dict[str, Any]:
    return {
        "w": launches.matrix(at), "out": out, "bias": 0, "add": 0, "rows": rows, "out_stride": rows, "add_stride": 0,
    }  # fmt: skip


def rotating(b: Bench, type_name: str, rows: int, cols: int, total: int) -> list[int]:
    """Enough matrices that one replay reads `total` bytes."""
    size = -(-device_bytes(type_name, rows, cols) // 256) * 256
    n = min(max(20, min(60, total // size)), b.pool.nbytes // size)
    return [b.pool.address + i * size for i in range(n)]


def matvec(
    b: Bench, type_name: str, rows: int, cols: int, n: int = 1, warps: int = MATVEC_WARPS, ring: int | None = None,
) -> float:  # fmt: skip
    """GB/s."""
    step = b.step(n)
    s = b.scratch.address
    made = []
    for at in rotating(b, type_name, rows, cols, 1200 << 20):
        group = [part(at, rows, s + (64 << 20))]
        if LAYOUTS[type_name].is_float:
            one = launches.float_product(type_name, step, group[0], cols, n, x32=s)
        else:
            one = launches.matvec(
                type_name, step, group, cols, x=s, norm=s, normalise=cols <= 8192, eps=1e-5,
                half=None if n == 1 else (s, s + (1 << 20)), processors=b.processors, warps=warps,
                ring=ring,
            )  # fmt: skip
        made.append(one)
    return len(made) * device_bytes(type_name, rows, cols) / b.time(made) / 1e9


def matmul(b: Bench, type_name: str, rows: int, cols: int, n: int, mma: bool) -> float:
    """Seconds. mma: without wgmma."""
    step = b.step(n)
    s = b.scratch.address
    made = []
    for p in rotating(b, type_name, rows, cols, 600 << 20)[:12]:
        one = part(p, rows, s + (256 << 20))
        if type_name == "F32":
            made.append(launches.float_product(type_name, step, one, cols, n, x32=s))
            continue
        tile = None if mma else tiles.choose(type_name, [rows], cols, n, b.processors)
        made.append(tiles.matmul(type_name, step, [one], cols, n, half=(s, s + (128 << 20)), tile=tile))
    return b.time(made) / len(made)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--formats", default=",".join(LAYOUTS))
    parser.add_argument("--sweep", action="store_true", help="warps and bytes on their way")
    parser.add_argument("--many", action="store_true", help="products with many columns")
    parser.add_argument("--mma", action="store_true", help="these without wgmma")
    args = parser.parse_args()
    formats = args.formats.split(",")
    cuda.init()
    context = cuda.Device(0).retain_primary_context()
    context.push()
    b = Bench(args.images)
    shapes = ", ".join(f"{rows}x{cols}" for rows, cols in SHAPES)
    if args.sweep:
        for f, warps, ring in product(formats, (4, 8), (48, 73, 96)):
            row = [f"{matvec(b, f, *shape, 1, warps, ring << 10):6.0f}" for shape in SHAPES]
            print(f"{f:7s} {warps:2d} warps {ring:3d} KiB, {shapes}: {' '.join(row)}", flush=True)
    elif args.many:
        print(f"{shapes}: us with 32, 64, 128 columns | TFLOP/s with 512, 2048", flush=True)
        mma = args.mma or not b.kernels.has(tiles.WGMMA_KERNEL)
        for f in formats:
            few = [f"{1e6 * matmul(b, f, *shape, n, mma):6.1f}" for n in (32, 64, 128) for shape in SHAPES]
            many = [2e-12 * r * c * n / matmul(b, f, r, c, n, mma) for n in (512, 2048) for r, c in SHAPES]
            print(f"{f:7s} {' '.join(few)} | {' '.join(f'{x:6.0f}' for x in many)}", flush=True)
    else:
        print(f"GB/s, 1 column: {shapes} | 2, 8 columns: 4096x11008", flush=True)
        for f in formats:
            one = [f"{matvec(b, f, *shape):6.0f}" for shape in SHAPES]
            few = [f"{matvec(b, f, 4096, 11008, n):6.0f}" for n in (2, 8)]
            print(f"{f:7s} {' '.join(one)} | {' '.join(few)}", flush=True)
    context.pop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
