"""The numerical contract (iii) and (v) on a real model: every instruction set against float64 and against the others.

    python bench/contract.py -m model.gguf --golden tests/golden/logits_NAME.npz [--isa avx2 ...] [--device cuda]
        [-ngl 9 all] [--no-float64]

With --device cuda models with so many layers on the GPU come last (all of them unless -ngl says how many), and prompts
of several lengths follow for each, with eight single tokens behind them, compared with the first set's logits of the
same positions.

Each instruction set runs in a process of its own over the golden file's tokens (640 positions) and leaves all logits in
a scratch file. Printed per set: mean KL divergence from a float64 forward pass over the dequantised weights, top-1
agreement on positions where that pass is sure by more than 0.2, the same against the golden file of another engine,
and the mean KL divergence from the first set in the list.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

CHUNK = 64
SURE = 0.2
CUDA = "cuda"
PROMPTS, BEHIND = (1, 2, 31, 32, 33, 255, 257, 512), 8
RUN = """
import sys, numpy as np, hybridkern as hk
ids = np.load(sys.argv[2])["ids"][:-1].tolist()
n = sys.argv[4]
where = {"device": None} if n == "cpu" else {"n_gpu_layers": int(n) if n.isdecimal() else n}
with hk.load(sys.argv[1], n_ctx=len(ids), n_ubatch=128, **where) as model:
    np.save(sys.argv[3], model.logits(ids))
"""
RUN_PROMPTS = """
import sys, numpy as np, hybridkern as hk
ids = np.load(sys.argv[2])["ids"][:-1].tolist()
behind, n = int(sys.argv[4]), sys.argv[5]
with hk.load(sys.argv[1], n_ctx=len(ids), n_gpu_layers=int(n) if n.isdecimal() else n) as model:
    for n in map(int, sys.argv[6:]):
        session = model.session()
        parts = [session.logits(ids[:n])] + [session.logits(ids[: n + i + 1], rows=[-1]) for i in range(behind)]
        np.save(sys.argv[3] + f"{n}.npy", np.concatenate(parts))
        session.close()
"""


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Float64 log-probabilities of logits [n][n_vocab]."""
    x = logits.astype(np.float64)
    x -= x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def run_set(isa: str, model: Path, golden: Path, out: Path, layers: str = "cpu") -> np.ndarray:
    """All logits of one kernel set, or with so many layers on the GPU; float32 [n][n_vocab], memory-mapped."""
    environment = {**os.environ} if layers != "cpu" else {**os.environ, "HYBRIDKERN_CPU": isa}
    subprocess.run([sys.executable, "-c", RUN, model, golden, out, layers], env=environment, check=True)
    return np.load(out, mmap_mode="r")


def prompts(first: np.ndarray, model: Path, golden: Path, scratch: Path, layers: str) -> Iterator[str]:
    """The lines of prompts of several lengths with layers on the GPU, against the first set's logits."""
    counts = [str(n) for n in PROMPTS]
    words = [model, golden, f"{scratch}/prompt", str(BEHIND), layers, *counts]
    subprocess.run([sys.executable, "-c", RUN_PROMPTS, *words], check=True)
    yield ""
    yield f"| prompt with -ngl {layers} | KL from the first set | top-1 | max abs |"
    yield "| --- | --- | --- | --- |"
    for n in PROMPTS:
        logits = np.load(scratch / f"prompt{n}.npy", mmap_mode="r")
        want = first[: len(logits)]
        divergence, same, sure = compare(want, logits)
        yield f"| {n} + {BEHIND} | {divergence:.2e} | {same}/{sure} | {np.abs(want - logits).max():.2e} |"


def run_float64(model: Path, golden: Path, out: Path, quantize: bool = False) -> np.ndarray:
    """All logits of the float64 forward pass, float64 [n][n_vocab], memory-mapped."""
    from hybridkern.gguf import GGUFFile
    from hybridkern.kernels.interface import Batch, Recorder
    from hybridkern.kernels.reference import ReferenceSet
    from hybridkern.model import LoadedModel

    ids = np.load(golden)["ids"][:-1].astype(np.int32)
    with GGUFFile.open(model) as file:
        loaded = LoadedModel.from_gguf(file)
        recorder = Recorder()
        loaded.record(recorder)
        reference = ReferenceSet(recorder.ops, quantize_activations=quantize)
        result = np.lib.format.open_memmap(out, "w+", np.float64, (len(ids), loaded.config.n_vocab))
        for start in range(0, len(ids), CHUNK):
            tokens = ids[start : start + CHUNK]
            n = len(tokens)
            positions = np.arange(start, start + n, dtype=np.int32)
            rows = np.arange(n, dtype=np.int32)
            result[start : start + n] = reference.run(Batch(tokens, positions, np.zeros(n, np.int32), rows))
    return result


def compare(reference: np.ndarray, logits: np.ndarray) -> tuple[float, int, int]:
    """Mean KL divergence of `logits` from `reference`, and (same top-1, positions) where the reference is sure."""
    divergence, same, sure = [], 0, 0
    for start in range(0, len(reference), CHUNK):
        p = log_softmax(reference[start : start + CHUNK])
        q = log_softmax(logits[start : start + CHUNK])
        divergence.append((np.exp(p) * (p - q)).sum(1))
        two = np.sort(np.partition(p, -2, 1)[:, -2:], 1)
        certain = two[:, 1] - two[:, 0] > SURE
        same += int((p.argmax(1) == q.argmax(1))[certain].sum())
        sure += int(certain.sum())
    return float(np.concatenate(divergence).mean()), same, sure


def compare_golden(golden: np.lib.npyio.NpzFile, logits: np.ndarray) -> tuple[float, int, int]:
    """As `compare`, against the 32 largest logits of another engine and the rest as one class (a lower bound)."""
    wanted = golden["top_logits"].astype(np.float64) - golden["log_sum_exp"][:, None]
    got = np.concatenate(
        [
            np.take_along_axis(log_softmax(logits[i : i + CHUNK]), golden["top_ids"][i : i + CHUNK], 1)
            for i in range(0, len(logits), CHUNK)
        ]
    )
    p, q = np.exp(wanted), np.exp(got)
    rest_p, rest_q = np.maximum(1 - p.sum(1), 1e-12), np.maximum(1 - q.sum(1), 1e-12)
    divergence = (p * (wanted - got)).sum(1) + rest_p * np.log(rest_p / rest_q)
    certain = wanted[:, 0] - wanted[:, 1] > SURE
    top = np.array([row.argmax() for row in logits])
    return float(divergence.mean()), int((top == golden["top_ids"][:, 0])[certain].sum()), int(certain.sum())


def rows(args: argparse.Namespace, scratch: Path) -> Iterator[str]:
    """The table's lines."""
    golden = np.load(args.golden)
    exact = quantised = None
    if args.float64:
        exact = run_float64(args.model, args.golden, scratch / "float64.npy")
        quantised = run_float64(args.model, args.golden, scratch / "float64-quantised.npy", quantize=True)
    first = None
    columns = ["float64", "top-1", "float64 on int8 inputs", "top-1", "golden", "top-1", "first set", "max abs"]
    yield f"| KL from | {' | '.join(columns)} |"
    yield "| --- |" + " --- |" * len(columns)
    on_gpu = args.ngl if args.device else []
    for isa, layers in [*((isa, "cpu") for isa in args.isa), *((f"{CUDA}, -ngl {n}", n) for n in on_gpu)]:
        logits = run_set(isa, args.model, args.golden, scratch / f"{isa}.npy", layers)
        cells = [isa]
        for reference in (exact, quantised):
            if reference is None:
                cells += ["-", "-"]
                continue
            divergence, same, sure = compare(reference, logits)
            cells += [f"{divergence:.2e}", f"{same}/{sure}"]
        divergence, same, sure = compare_golden(golden, logits)
        cells += [f"{divergence:.2e}", f"{same}/{sure}"]
        first = logits if first is None else first
        cells += [f"{compare(first, logits)[0]:.2e}", f"{np.abs(first - logits).max():.2e}"]
        yield f"| {' | '.join(cells)} |"
    for layers in on_gpu if first is not None else []:
        yield from prompts(first, args.model, args.golden, scratch, layers)


def main() -> None:
    """Print the table."""
    from hybridkern import kernels

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--golden", type=Path, required=True)
    parser.add_argument("--isa", nargs="+", default=list(reversed(kernels.available())))
    parser.add_argument("--device", choices=[CUDA])
    parser.add_argument("-ngl", nargs="+", default=["all"], metavar="N", help="layers on the GPU, with --device")
    parser.add_argument("--no-float64", dest="float64", action="store_false")
    with tempfile.TemporaryDirectory() as scratch:
        for line in rows(parser.parse_args(), Path(scratch)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
