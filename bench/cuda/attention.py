"""Times attention over caches that rotate through more than the L2: decode in us and GB/s, prefill in TFLOP/s.

python bench/cuda/attention.py [--images FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pycuda.driver as cuda

from hybridkern.kernels.cuda import cache_layout, launches
from hybridkern.kernels.cuda.driver import Event, Kernels, Memory, Stream, attribute
from hybridkern.kernels.cuda.images import image_files

BLOCKS, CONTEXT, PAGE = 32, 8448, 128


class Bench:
    """A cache of 32 blocks of halves (any bytes do for speed, only no NaN), and a step slot."""

    def __init__(self, images: Path | None) -> None:
        files = image_files() if images is None else [*images.glob("*.fatbin"), *images.glob("*.cubin")]
        self.kernels = Kernels({p.stem: p.read_bytes() for p in files})
        self.stream, self.processors = Stream(), attribute(16)
        self.pages = -(-CONTEXT // PAGE)
        self.pool = Memory(self.pages * BLOCKS * cache_layout.cache_head_bytes("f16", 128, 128) * 32)
        noise = np.random.default_rng(0).standard_normal(32 << 20, np.float32).astype(np.float16)
        for at in range(0, self.pool.nbytes - noise.nbytes + 1, noise.nbytes):
            self.stream.upload(self.pool.address + at, noise)
        self.scratch = Memory(1 << 30)
        self.stream.fill(self.scratch.address, 0, self.scratch.nbytes)
        self.slot = Memory(1 << 20)

    def step(self, n: int, depth: int) -> dict[str, int]:
        """n tokens of one sequence from position `depth` on."""
        slot, at = np.zeros(1 << 18, np.int32), {}
        fields = {
            "counts": [n, 1],
            "tokens": np.zeros(n),
            "positions": depth + np.arange(n),
            "sequences": np.zeros(n),
            "variants": np.zeros(n),
            "outputs": [0],
            "pages": np.random.default_rng(1).permutation(self.pages),
        }
        end = 0
        for name, value in fields.items():
            slot[end : end + len(value)] = value
            at[name] = self.slot.address + 4 * end
            end += -(-len(value) // 64) * 64
        self.stream.upload(self.slot.address, slot)
        self.stream.wait()
        return at | {"page_stride": self.pages}

    def time(self, made: list[launches.Launch], early: bool = True) -> float:
        """Seconds of one launch in a graph of them all, the best of several replays."""
        graph = self.stream.capture(self.kernels, made, early)
        graph.launch(self.stream)
        times = []
        for _ in range(7):
            start, end = Event(), Event()
            start.record(self.stream)
            graph.launch(self.stream)
            end.record(self.stream)
            times.append(end.since(start))
        graph.destroy()
        return min(times) / 1e3 / len(made)

    def attend(self, n: int, depth: int, heads: int, n_kv: int, dim: int, kv_type: str, early: bool = True) -> float:
        """Seconds of one block's attention."""
        head = cache_layout.cache_head_bytes(kv_type, dim, dim)
        step, s, made = self.step(n, depth), self.scratch.address, []
        splits = launches.decode_splits(n, heads, n_kv, self.processors, CONTEXT)
        for b in range(BLOCKS):
            c = cache_layout.cache_struct(
                self.pool.address, BLOCKS * n_kv * head, b * n_kv * head, n_kv, dim, dim, kv_type
            )
            one = launches.attend(
                step, n, c, kv_type, splits=splits, q=s, out=s + (256 << 20), q_stride=heads * dim,
                out_stride=heads * dim, partial=s + (512 << 20), arrived=s + (1000 << 20), n_head=heads, window=0,
                scale=dim**-0.5, softcap=0.0,
            )  # fmt: skip
            made.append(one)
        return self.time(made, early)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--quick", action="store_true", help="only the first shape")
    parser.add_argument("--only", choices=["decode", "prefill"])
    args = parser.parse_args()
    cuda.init()
    context = cuda.Device(0).retain_primary_context()
    context.push()
    try:
        measure(Bench(args.images), args)
    finally:
        context.pop()


def measure(b: Bench, args: argparse.Namespace) -> None:
    shapes: list[tuple[Any, ...]] = [(32, 32, 128, "f16"), (32, 8, 128, "f16"), (64, 8, 128, "f16")]
    for heads, n_kv, dim, kv_type in [
        *shapes,
        (32, 32, 128, "q8_0"),
        (32, 32, 128, "q4_0"),
        (32, 32, 64, "f16"),
        (8, 4, 256, "f16"),
    ]:
        if args.only == "prefill":
            break
        row = []
        for depth in (0, 127, 511, 2047, 8191):
            seconds = b.attend(1, depth, heads, n_kv, dim, kv_type)
            read = (depth + 1) * n_kv * cache_layout.cache_head_bytes(kv_type, dim, dim) / PAGE
            row.append(f"{depth + 1}: {seconds * 1e6:6.2f} us {read / seconds / 1e9:5.0f} GB/s")
        late = b.attend(1, 8191, heads, n_kv, dim, kv_type, early=False)
        print(
            f"decode {heads}/{n_kv} heads of {dim} {kv_type:4s} | {' | '.join(row)} | late {late * 1e6:6.2f}",
            flush=True,
        )
        if args.quick:
            return
    for n in (2, 8):
        print(f"decode {n} tokens at 2048, 32/32: {b.attend(n, 2047, 32, 32, 128, 'f16') * 1e6:.1f} us", flush=True)
    for heads, n_kv, dim, kv_type in shapes:
        if args.only == "decode":
            break
        row = []
        for n, depth in ((32, 0), (512, 0), (2048, 0), (512, 7680)):
            seconds = b.attend(n, depth, heads, n_kv, dim, kv_type)
            flops = 4.0 * heads * dim * sum(depth + i + 1 for i in range(n))
            row.append(f"{n} at {depth}: {seconds * 1e6:7.1f} us {flops / seconds / 1e12:4.0f} TFLOP/s")
        print(f"prefill {heads}/{n_kv} heads of {dim} {kv_type} | {' | '.join(row)}", flush=True)


if __name__ == "__main__":
    main()
