"""Times a model of Llama 2 7B's shape, Q4_K_M, of random weights, wholly on a GPU: decode at depths, prefill, upload.

python bench/cuda/llama.py [--blocks 32] [--launches]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from hybridkern.kernels.cuda import CudaSet
from hybridkern.kernels.cuda.cuda_set import CudaTape
from hybridkern.kernels.interface import Angles, Batch, Buffer, KVSpec, Recorder, Vector, Weight

D, F, HEADS, VOCAB, CONTEXT = 4096, 11008, 32, 32000, 8448
BYTES = {"Q4_K": 144, "Q6_K": 210}


class Shape:
    """Records the model; weights are views of one random array."""

    def __init__(self, blocks: int) -> None:
        self.noise = np.random.default_rng(0).integers(0, 256, 400 << 20, np.uint8)
        self.made = 0
        self.bytes = 0
        self.r = Recorder()
        self.specs = [KVSpec(i, HEADS, D // HEADS, D // HEADS) for i in range(blocks)]
        self.logits = self.record(blocks)

    def weight(self, kind: str, rows: int, cols: int) -> Weight:
        row = cols // 256 * BYTES[kind]
        at = 64 * self.made % (self.noise.nbytes - rows * row)
        self.made += 1
        self.bytes += rows * row
        return Weight(f"w{self.made}", kind, rows, cols, self.noise[at : at + rows * row].reshape(rows, row))

    def vector(self) -> Vector:
        return Vector("norm", np.ones(D, np.float32))

    def record(self, blocks: int) -> Buffer:
        r = self.r
        angles = Angles("angles", 10000.0 ** (-np.arange(64) / 64))
        names = {"x": D, "h": D, "q": D, "k": D, "v": D, "a": D, "gate": F, "up": F, "gated": F}
        b = {name: r.buffer(name, width) for name, width in names.items()}
        r.angles(angles)
        r.embed(b["x"], self.weight("Q4_K", VOCAB, D))
        for i, kv in enumerate(self.specs):
            more = "Q6_K" if i < blocks // 8 or i >= 7 * blocks // 8 or (i - blocks // 8) % 3 == 2 else "Q4_K"
            r.rmsnorm(b["h"], b["x"], self.vector(), 1e-5)
            for name, kind in (("q", "Q4_K"), ("k", "Q4_K"), ("v", more)):
                r.matmul(b[name], b["h"], self.weight(kind, D, D))
            r.rope(b["q"], angles, 128, "norm")
            r.rope(b["k"], angles, 128, "norm")
            r.store_kv(kv, b["k"], b["v"])
            r.attend(b["a"], b["q"], kv, HEADS, 128**-0.5)
            r.matmul(b["x"], b["a"], self.weight("Q4_K", D, D), add=b["x"])
            r.rmsnorm(b["h"], b["x"], self.vector(), 1e-5)
            r.matmul(b["gate"], b["h"], self.weight("Q4_K", F, D))
            r.matmul(b["up"], b["h"], self.weight("Q4_K", F, D))
            r.glu(b["gated"], b["gate"], b["up"], "silu")
            r.matmul(b["x"], b["gated"], self.weight(more, D, F), add=b["x"])
        last, normed, logits = (r.buffer(n, w, "outputs") for n, w in (("last", D), ("normed", D), ("logits", VOCAB)))
        r.select(last, b["x"])
        r.rmsnorm(normed, last, self.vector(), 1e-5)
        r.matmul(logits, normed, self.weight("Q6_K", VOCAB, D))
        return logits


def seconds(tape: CudaTape, table: Any, n: int, start: int, steps: int) -> float:
    """Per step, queued one behind the other, with inputs and without results."""
    batch = Batch(
        tokens=np.zeros(n, np.int32),
        positions=np.arange(start, start + n, dtype=np.int32),
        sequences=np.zeros(n, np.int32),
        outputs=np.array([n - 1], np.int32),
    )
    tape.start(batch, table)
    tape.wait()
    begin = time.perf_counter()
    for _ in range(steps):
        tape.start(batch, table)
    tape.wait()
    return (time.perf_counter() - begin) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=32)
    parser.add_argument("--decode", action="store_true", help="no prefill")
    parser.add_argument("--prefill", action="store_true", help="no decode")
    parser.add_argument("--launches", action="store_true", help="a token is not one kernel, but many launches")
    args = parser.parse_args()
    shape = Shape(args.blocks)
    pages = -(-CONTEXT // 128)
    begin = time.perf_counter()
    tape = CudaSet().lower(
        shape.r.ops, logits=shape.logits, specs=shape.specs, n_pages=pages, n_seq=1, max_pages=pages, max_rows=2048,
        max_outputs=64, one_kernel=not args.launches,
    )  # fmt: skip
    took = time.perf_counter() - begin
    print(f"uploaded {shape.bytes / 1e9:.2f} GB in {took:.2f} s: {shape.bytes / took / 1e9:.1f} GB/s", flush=True)
    print(tape.graphs.describe())
    table = np.arange(pages, dtype=np.int32).reshape(1, pages)
    for depth in () if args.prefill else (0, 512, 2048, 8192):
        s = seconds(tape, table, 1, depth, 100)
        print(f"decode at {depth:5d}: {s * 1e3:.3f} ms, {1 / s:.0f} t/s, {len(tape.launches(1))} launches", flush=True)
    for n in () if args.decode else (8, 32, 128, 512, 2048):
        s = seconds(tape, table, n, 0, 10)
        print(f"prefill of {n:4d}: {s * 1e3:.2f} ms, {n / s:.0f} t/s", flush=True)
    tape.close()


if __name__ == "__main__":
    main()
