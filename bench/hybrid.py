#!/usr/bin/env python3
"""Divided models on a machine with a GPU: what a crossing costs, and tokens per second of several placements.

python bench/hybrid.py --link                      # a hand-over CPU -> GPU -> CPU of a row, within a step
python bench/hybrid.py -m model.gguf -ngl 0,21,33  # whole blocks, counted as llama.cpp counts
python bench/hybrid.py -m model.gguf --n-cpu-ffn 12,16 [--prompt 512] [-t 16]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np

from hybridkern.gguf import GGUFFile
from hybridkern.kernels.interface import Buffer, Op, Recorder, Weight
from hybridkern.model import LoadedModel
from hybridkern.plan.assignment import Assignment
from hybridkern.plan.division import Division, Receive, Segment, Send, Transfer
from hybridkern.runtime.assembly import Assembled, make_parts
from hybridkern.runtime.engine import Engine
from hybridkern.runtime.parts import Sizes
from hybridkern.runtime.threads import default_threads

HANDOVERS = 64


def whole_blocks(model: LoadedModel, n: int) -> Assignment:
    """The head and the last n - 1 blocks on the GPU."""
    first = len(model.kv_specs) + 1 - n
    on = {w.name: "cuda0" if n and _block(w) >= first else "cpu" for w in _matrices(model)}
    kv = tuple("cuda0" if n and i >= first else "cpu" for i in range(len(model.kv_specs)))
    return Assignment(on, kv, "cpu", "cuda0" if n else "cpu", 512)


def cpu_ffn(model: LoadedModel, n: int) -> Assignment:
    """Everything on the GPU but the feed-forward weights of the first n blocks."""
    on = {w.name: "cpu" if ".ffn_" in w.name and _block(w) < n else "cuda0" for w in _matrices(model)}
    return Assignment(on, ("cuda0",) * len(model.kv_specs), "cpu", "cuda0", 512)


def _matrices(model: LoadedModel) -> list[Weight]:
    return [w for w in model.weights.matrices() if w.name.startswith("blk.")]


def _block(w: Weight) -> int:
    return int(w.name.split(".")[1])


def gpu_bytes(model: LoadedModel, a: Assignment) -> int:
    """Of the weights on the GPU."""
    nbytes = {w.name: w.data.nbytes for w in model.weights.matrices()}
    blocks = sum(nbytes[name] for name, device in a.tensors.items() if device != "cpu")
    return blocks + (model.weights.output.data.nbytes if a.head != "cpu" else 0)


def decode_rate(e: Engine, n: int, depth: int) -> float:
    """Tokens per second, greedily behind `depth` tokens."""
    s = e.new_sequence()
    rng = np.random.default_rng(0)
    token, _ = e.greedy(s, rng.integers(5, e.n_vocab, depth).tolist())
    for _ in range(4):
        token, _ = e.greedy(s, token)
    times = []
    for _ in range(n):
        begin = time.perf_counter()
        token, _ = e.greedy(s, token)
        times.append(time.perf_counter() - begin)
    e.free(s)
    return 1 / statistics.median(times)


def prompt_rate(e: Engine, n: int) -> float:
    """Tokens per second of a prompt, the best of three."""
    ids = np.random.default_rng(0).integers(5, e.n_vocab, n)
    best = 0.0
    for _ in range(3):
        s = e.new_sequence()
        begin = time.perf_counter()
        e.evaluate(s, ids)
        best = max(best, n / (time.perf_counter() - begin))
        e.free(s)
    return best


def placements(args: argparse.Namespace) -> None:
    file = GGUFFile.open(args.model)
    model = LoadedModel.from_gguf(file)
    rows = [(f"-ngl {n}", whole_blocks(model, n)) for n in args.ngl]
    rows += [(f"--n-cpu-ffn {n}", cpu_ffn(model, n)) for n in args.n_cpu_ffn]
    print(f"{'placement':18} {'GPU weights':>12} {'load s':>7} {'decode t/s':>11} {'prompt t/s':>11}", flush=True)
    for name, a in rows:
        begin = time.perf_counter()
        with Engine(model, file, n_ctx=2048, n_seq=2, assignment=a, threads=args.threads) as e:
            took = time.perf_counter() - begin
            decode = decode_rate(e, args.tokens, 64)
            prompt = prompt_rate(e, args.prompt) if args.prompt else 0.0
            if args.verbose:
                print(e.describe())
        mib = gpu_bytes(model, a) / 2**20
        print(f"{name:18} {mib:8.0f} MiB {took:7.1f} {decode:11.1f} {prompt:11.1f}", flush=True)


def record(width: int) -> tuple[list[Op], list[Op], Buffer]:
    """(in front, behind, x): a row of `width` values, scaled by nothing between."""
    r = Recorder()
    table = Weight("embedding", "F32", 16, width, np.ones((16, 4 * width), np.uint8))
    x, last, logits = r.buffer("x", width), r.buffer("last", width, "outputs"), r.buffer("logits", 16, "outputs")
    r.embed(x, table)
    front = list(r.ops)
    r.select(last, x)
    r.matmul(logits, last, table)
    return front, r.ops[1:], x


def handover(width: int, n: int, threads: int) -> float:
    """Seconds of a step with n hand-overs of a row to the GPU and back."""
    front, behind, x = record(width)
    same = Op("scale", x, (x,), {"factor": 1.0})
    commands: list[Segment | Send | Receive] = [Segment("cpu", tuple(front))]
    for _ in range(n):
        to, back = Transfer("cpu", "cuda0", (x,)), Transfer("cuda0", "cpu", (x,))
        commands += [Send(to), Receive(to), Segment("cuda0", (same,), (x,)), Send(back), Receive(back)]
        commands.append(Segment("cpu", (same,)))
    division = Division((*commands, Segment("cpu", tuple(behind))), "cpu")
    logits = behind[-1].out
    sizes = Sizes(8, 8, 1, 1, 1, "f16", logits.width)
    parts = make_parts(
        division, logits, [], sizes, {}, progress=None, threads=(threads, threads), cpu=None, repack=True, source=None
    )
    table = np.zeros((1, 1), np.int32)
    made = Assembled(division, parts, sizes, table.ctypes.data)
    slot = made.slot()
    times = []
    for i in range(200):
        begin = time.perf_counter()
        made.program.decode(slot.native, 3, i % 100, 0, 0, threads)
        times.append(time.perf_counter() - begin)
    del made
    for part in parts.values():
        part.close()
    return statistics.median(times[20:])


def links(threads: int) -> None:
    print(f"a hand-over CPU -> GPU -> CPU of one row, {threads} threads, between two operations of each")
    for width in (16, 1024, 4096, 8192):
        few, many = (handover(width, n, threads) for n in (2, 2 + HANDOVERS))
        print(f"{4 * width / 1024:6.2f} KB: {(many - few) / HANDOVERS * 1e6:6.2f} us", flush=True)


def numbers(text: str) -> Sequence[int]:
    return [int(x) for x in text.split(",") if x]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model")
    parser.add_argument("-ngl", type=numbers, default=[])
    parser.add_argument("--n-cpu-ffn", type=numbers, default=[])
    parser.add_argument("-t", "--threads", type=int, default=default_threads())
    parser.add_argument("--prompt", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--link", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    if args.link:
        links(args.threads)
    if args.model:
        placements(args)


if __name__ == "__main__":
    main()
