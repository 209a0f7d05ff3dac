"""Times prefill with blocks whose weights come from main memory in every step.

python bench/stream.py MODEL.gguf [--streamed 32,12] [--tokens 512,2048] [--form panels|rows] [--depth 2] [--staged]
python bench/stream.py MODEL.gguf --engine [--streamed 32,12] ...

The first so many blocks are streamed, the others lie on the GPU. Without --engine embedding and head are there too, and
a step is queued with its inputs and waited for, without results. With it, embedding and, where all blocks are streamed,
the head are on the CPU, caches on the GPU, and what is timed is `Engine.evaluate` of a prompt.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridkern.errors import KernelError
from hybridkern.gguf import GGUFFile
from hybridkern.kernels.cpu.weights import CpuWeights
from hybridkern.kernels.cuda import CudaSet, registration
from hybridkern.kernels.cuda.cuda_set import CudaTape
from hybridkern.kernels.interface import Batch, Recorder, Weight
from hybridkern.kernels.streamed import HostSource, Streamed, key_of
from hybridkern.model import LoadedModel
from hybridkern.plan.assignment import Assignment
from hybridkern.runtime.engine import Engine


def sources_of(blocks: Sequence[Sequence[Weight]], packed: bool, file: GGUFFile) -> dict[Any, HostSource]:
    """Where the matrices lie: in the mapped file, or packed as the CPU set does it."""
    weights = [w for block in blocks for w in block]
    if not packed:
        return {key_of(w): HostSource(w.data.ctypes.data, False, True, file) for w in weights}
    panels = CpuWeights(weights, 16, source=file)
    return {key_of(w): HostSource(panels.place(w)[0], True, False, panels) for w in weights}


def seconds(tape: CudaTape, n: int, times: int) -> list[float]:
    """Of steps of n tokens, each waited for."""
    batch = Batch(
        tokens=np.arange(n, dtype=np.int32) % 1000,
        positions=np.arange(n, dtype=np.int32),
        sequences=np.zeros(n, np.int32),
        outputs=np.array([n - 1], np.int32),
    )
    table = np.arange(16, dtype=np.int32).reshape(1, 16)
    took = []
    for _ in range(times + 1):
        begin = time.perf_counter()
        tape.start(batch, table)
        tape.wait()
        took.append(time.perf_counter() - begin)
    return took[1:]


def numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def refuse_registration() -> None:
    """Memory cannot be registered from now on."""
    real = registration.call

    def refuse(name: str, *values: Any) -> None:
        if name == "host_register":
            raise KernelError("as --staged asks")
        real(name, *values)

    registration.call = refuse  # type: ignore[attr-defined]


def tapes(args: argparse.Namespace, model: LoadedModel, file: GGUFFile, all_blocks: list[list[Weight]]) -> None:
    """Steps on the device."""
    recorder = Recorder()
    logits = model.record(recorder)
    sources = sources_of(all_blocks[: max(args.streamed)], args.form == "panels", file)
    for count, depth in ((c, d) for c in args.streamed for d in args.depth):
        blocks = all_blocks[:count]
        nbytes = sum(w.data.nbytes for block in blocks for w in block)
        streamed = Streamed(blocks, {key_of(w): sources[key_of(w)] for b in blocks for w in b}, depth)
        begin = time.perf_counter()
        tape = CudaSet().lower(
            recorder.ops, logits=logits, streamed=streamed if count else None, specs=model.kv_specs, n_pages=16,
            n_seq=1, max_pages=16, max_rows=2048, max_outputs=8,
        )  # fmt: skip
        took = time.perf_counter() - begin
        size = f"{nbytes / 1e9:.2f} GB, {args.form}"
        print(f"{count} of {len(all_blocks)} blocks streamed ({size}), depth {depth}: made in {took:.2f} s")
        print(f"  uploaded {tape.holdings.place.uploaded}")
        for line in (x for s in tape.holdings.streams for x in s.describe()):
            print(f"  {line}")
        for m in args.tokens:
            s = statistics.median(seconds(tape, m, 9))
            print(f"  prefill {m}: {s * 1e3:.2f} ms, {m / s:.0f} t/s, {nbytes / s / 1e9:.1f} GB/s", flush=True)
        tape.close()


def assigned(all_blocks: list[list[Weight]], count: int, depth: int) -> Assignment:
    """The first blocks are streamed."""
    gpu, n = "cuda0", len(all_blocks)
    tensors = {w.name: "cpu" if i < count else gpu for i, block in enumerate(all_blocks) for w in block}
    return Assignment(
        tensors, (gpu,) * n, "cpu", "cpu" if count == n else gpu, 2048, streamed=dict.fromkeys(range(count), gpu),
        stream_from=33, stream_depth=depth,
    )  # fmt: skip


def engines(args: argparse.Namespace, model: LoadedModel, file: GGUFFile, all_blocks: list[list[Weight]]) -> None:
    """Prompts, through the engine."""
    for count, depth in ((c, d) for c in args.streamed for d in args.depth):
        begin = time.perf_counter()
        assignment = assigned(all_blocks, count, depth)
        with Engine(model, file, n_ctx=2048, n_seq=2, assignment=assignment, repack=args.form == "panels") as e:
            took_all = time.perf_counter() - begin
            print(f"{count} of {len(all_blocks)} blocks streamed, {args.form}: made in {took_all:.2f} s")
            for line in e.describe().split("\n") if args.verbose else ():
                print(f"  {line}")
            sequence = e.new_sequence()
            for n in args.tokens:
                ids = np.random.default_rng(0).integers(5, e.n_vocab, n)
                took = []
                for _ in range(10):
                    begin = time.perf_counter()
                    e.evaluate(sequence, ids)
                    took.append(time.perf_counter() - begin)
                    e.truncate(sequence, 0)
                s = statistics.median(took[1:])
                print(f"  prompt of {n}: {s * 1e3:.2f} ms, {n / s:.0f} t/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--streamed", type=numbers, default=[32, 12], help="numbers of blocks")
    parser.add_argument("--tokens", type=numbers, default=[512, 2048])
    parser.add_argument("--form", choices=["panels", "rows"], default="panels")
    parser.add_argument("--depth", type=numbers, default=[2])
    parser.add_argument("--staged", action="store_true", help="as though memory could not be registered")
    parser.add_argument("--engine", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    if args.staged:
        refuse_registration()
    file = GGUFFile.open(args.model)
    model = LoadedModel.from_gguf(file)
    matrices = [w for w in model.weights.matrices() if w.name.startswith("blk.")]
    n = 1 + max(int(w.name.split(".")[1]) for w in matrices)
    all_blocks = [[w for w in matrices if w.name.startswith(f"blk.{b}.")] for b in range(n)]
    (engines if args.engine else tapes)(args, model, file, all_blocks)


if __name__ == "__main__":
    main()
