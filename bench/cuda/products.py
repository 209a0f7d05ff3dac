"""Times products on a GPU: matrix-vector in GB/s of weights, cold, and matrix products in TFLOP/s, in captured graphs.

Weights are random bytes. Weights rotate over more than 4 x L2.
    python bench/cuda/products.py [--images FOLDER] [--quick]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pycuda.driver as cuda

from hybridkern.kernels.cuda import launches
from hybridkern.kernels.cuda.driver import Event, Graph, Kernels, Memory, Stream, attribute
from hybridkern.kernels.cuda.launches import Launch
from hybridkern.kernels.cuda.layout import LAYOUTS, device_bytes, plane_addresses

REPEATS = 7


class Bench:
    """Memory and timing."""

    def __init__(self, images: Path) -> None:
        self.kernels = Kernels({p.stem: p.read_bytes() for p in [*images.glob("*.fatbin"), *images.glob("*.cubin")]})
        self.stream = Stream()
        self.processors = attribute(16)
        self.pool = Memory(3 << 30)
        noise = np.random.default_rng(0).integers(
            0, 256, 256 << 20, np.uint8
        )  # zeros would draw less power, and run faster
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


def part(planes: tuple[int, ...], rows: int, out: int) -> dict[str, Any]:
    return {
        "w": launches.matrix(planes),
        "out": out,
        "bias": 0,
        "add": 0,
        "rows": rows,
        "out_stride": rows,
        "add_stride": 0,
    }


def rotating(b: Bench, type_name: str, rows: int, cols: int, total: int) -> list[tuple[int, ...]]:
    """Planes of enough matrices that one replay reads `total` bytes."""
    size = device_bytes(type_name, rows, cols)
    n = max(20, min(60, total // size))
    n = min(n, b.pool.nbytes // size)
    return [plane_addresses(b.pool.address + i * size, type_name, rows, cols) for i in range(n)]


def matvec(
    b: Bench,
    type_name: str,
    rows: int,
    cols: int,
    blocks: float,
    early: bool,
    n: int = 1,
    tile: int = 4,
    ahead: int = 65536,
) -> float:
    """GB/s."""
    step = b.step(n)
    s = b.scratch.address
    made = []
    for planes in rotating(b, type_name, rows, cols, 1200 << 20):
        group = [part(planes, rows, s + (64 << 20))]
        if LAYOUTS[type_name].is_float:
            one = launches.matmul(type_name, step, group[0], cols, n, x32=s, x_stride=cols)
        else:
            one = launches.matvec(
                type_name, step, group, cols, x=s, norm=s, normalise=cols <= 8192, eps=1e-5, ahead=ahead,
                quantised=None if n == 1 else (s, s + (1 << 20)), processors=b.processors, blocks=blocks,
                rows_per_tile=tile,
            )  # fmt: skip
        made.append(one)
    seconds = b.time(made, early)
    return len(made) * device_bytes(type_name, rows, cols) / seconds / 1e9


def matmul(b: Bench, type_name: str, rows: int, cols: int, n: int) -> float:
    """TFLOP/s."""
    step = b.step(n)
    s = b.scratch.address
    made = [
        launches.matmul(
            type_name, step, part(p, rows, s + (256 << 20)), cols, n, half=(s, s + (128 << 20)), x_stride=cols, x32=s
        )
        for p in rotating(b, type_name, rows, cols, 600 << 20)[:12]
    ]
    return 2.0 * rows * cols * n * len(made) / b.time(made) / 1e12


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--tile", type=int, default=4, help="rows per tile that the images were compiled for")
    parser.add_argument("--formats", default=",".join(LAYOUTS))
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--warps", type=int, default=launches.MATVEC_WARPS, help="of a matrix-vector block")
    parser.add_argument("--wide", type=int, nargs=3, help="rows, tokens, threads that hk_matmul was compiled for")
    args = parser.parse_args()
    if args.wide:
        launches.WIDE = tuple(args.wide)
    launches.MATVEC_WARPS = args.warps
    formats = args.formats.split(",")
    cuda.init()
    context = cuda.Device(0).retain_primary_context()
    context.push()
    b = Bench(args.images)
    if args.sweep:
        for f in formats:
            for rows, cols in ((4096, 4096), (11008, 4096), (4096, 11008)):
                row = [
                    f"{matvec(b, f, rows, cols, k, True, 1, args.tile, a << 10):6.0f}"
                    for a in (0, 32, 96, 192)
                    for k in (1, 2)
                ]
                print(
                    f"sweep {f} {rows}x{cols} tile {args.tile} blocks 1 2 at 0 32 96 192 KB ahead: {' '.join(row)}",
                    flush=True,
                )
        context.pop()
        return 0
    print(
        "format  4096x11008 n=1: GB/s at blocks 1, 2, 4 | n=2, 8 at 1, 2 | matmul 11008x4096 TFLOP/s n=32, 512, 2048",
        flush=True,
    )
    for f in formats:
        one = [f"{matvec(b, f, 4096, 11008, k, True):6.0f}" for k in (1, 2, 4)]
        few = [f"{matvec(b, f, 4096, 11008, k, True, n):6.0f}" for n in (2, 8) for k in (1, 2)]
        many = [f"{matmul(b, f, 11008, 4096, n):6.1f}" for n in (32, 512, 2048)]
        print(f"{f:7s} {' '.join(one)} | {' '.join(few)} | {' '.join(many)}", flush=True)
    context.pop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
