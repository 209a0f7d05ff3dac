#!/usr/bin/env python3
"""Compare hybridkern with llama.cpp, and if wanted ik_llama.cpp, on the same GGUF files, taking turns in one run.

    pip install .
    python -m venv peer
    CMAKE_ARGS=-DGGML_NATIVE=ON peer/bin/pip install --no-binary llama-cpp-python llama-cpp-python
    python bench/peers.py -m model.gguf --peer-python peer/bin/python --out peers.json

For ik_llama.cpp, install ik-llama-cpp-python in the same way and pass --ik-python and its --settings.

Every engine and setting runs in a worker process of its own (hybridkern/measure/worker), loaded once. In each round
every test is timed in every worker, one after the other; the first place rotates. Memory read bandwidth is measured in
each round too, since a shared host changes its speed. Before anything is timed, each worker computes the perplexity of
tests/golden/text.txt, in batches and token by token: a setting whose perplexity is wrong is shown, but never counts as
the best peer. `hybridkern bench --peer` compares with one peer in its usual setting, by the same worker.

llama.cpp's settings: `repack` is its default; `raw` keeps the file's rows, which lets its tiled matrix product take
K-quants; `raw-untiled` turns that off as well. ik_llama.cpp's: `ik` is its default; `ik-ubatch16` avoids a batch path
that is wrong for some row lengths; `ik-repack` interleaves rows at load. Each with and without flash attention, unless
--flash says otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bandwidth import Bandwidth
from hybridkern.measure.peers import Worker
from hybridkern.measure.rows import OURS, commit
from hybridkern.measure.timing import Workload
from hybridkern.runtime.machine import cpu_name

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"
PERPLEXITY_IDS = 641  # as many as the golden files were made with
TOLERANCE = 0.02
STEPPED_IDS = 65
STEPPED_TOLERANCE = 0.06  # over so few tokens the noise of quantised activations alone gave 2.4 %
LEAST = 0.3  # seconds that a turn measures: short work is repeated
SETTINGS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "repack": ("llama.cpp", {"repack": True}, {}),
    "raw": ("llama.cpp", {"repack": False}, {"GGML_CPU_TILED_MM": "1"}),
    "raw-untiled": ("llama.cpp", {"repack": False}, {"GGML_CPU_TILED_MM": "0"}),
    "ik": ("ik_llama.cpp", {"repack": False}, {}),
    "ik-ubatch16": ("ik_llama.cpp", {"repack": False, "ubatch": 16}, {}),
    "ik-repack": ("ik_llama.cpp", {"repack": True}, {}),
}


class Entrant(Worker):
    """One engine in one setting, and whether it computes what the others do."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.trusted = True
        self.perplexity: dict[str, float] = {}


def golden_perplexity(path: Path) -> float | None:
    """The reference perplexity from the golden files, when `path` is one of their models."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
    for golden in GOLDEN.glob("greedy_*.json"):
        content = json.loads(golden.read_text())
        if content["sha256"] == digest.hexdigest():
            return content["perplexity"]
    return None


def decode_bytes(path: Path) -> int | None:
    """Bytes of weights that one decoded token reads: all but the embedding, unless it is the output matrix too."""
    try:
        from gguf import GGUFReader
    except ImportError:
        return None
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in GGUFReader(path).tensors}
    if "output.weight" in sizes:
        sizes.pop("token_embd.weight")
    return sum(sizes.values())


def check(workers: list[Entrant], ids: list[int], reference: float | None) -> float:
    """Compute each worker's perplexities and mark those that are wrong; returns the reference that was used."""
    for worker in workers:
        worker.perplexity = {
            "batched": worker.call("perplexity", ids[:PERPLEXITY_IDS]),
            "stepped": worker.call("perplexity", ids[:STEPPED_IDS], 1),
            "batched_same_ids": worker.call("perplexity", ids[:STEPPED_IDS]),
        }
    if reference is None:
        ours = [w.perplexity["batched"] for w in workers if w.engine == OURS]
        reference = ours[0] if ours else statistics.median(w.perplexity["batched"] for w in workers)
    for worker in workers:
        found = worker.perplexity
        batched = abs(found["batched"] / reference - 1) <= TOLERANCE
        stepped = abs(found["stepped"] / found["batched_same_ids"] - 1) <= STEPPED_TOLERANCE
        worker.trusted = batched and stepped
    return reference


def spread(samples: Sequence[float], digits: int = 1) -> str:
    low, middle, high = min(samples), statistics.median(samples), max(samples)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def table(workers: list[Entrant], tests: list[Workload], rates: dict, weights: int | None, read: float) -> list[dict]:
    """Print the Markdown table of one model; returns its rows as data."""
    ours = next((w.label for w in workers if w.engine == OURS), None)
    peers = [w.label for w in workers if w.engine != OURS]
    trusted = [w.label for w in workers if w.engine != OURS and w.trusted]
    head = ["test", *([OURS] if ours else []), *peers, "best peer"]
    head += ["ours / best", f"ours / {peers[0]}"] if ours and peers else []
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    rows = []
    for test in tests:
        median = {label: statistics.median(rates[label, test.name]) for label in [*([ours] if ours else []), *peers]}
        best = max(trusted, key=median.get, default=None)
        cells = [test.name, *(spread(rates[label, test.name]) for label in median), best or "none is right"]
        row: dict[str, Any] = {"test": test.name, "tokens_per_s": median, "best_peer": best}
        if ours and peers:
            row["ours_to_best"] = median[ours] / median[best] if best else None
            row["ours_to_default"] = median[ours] / median[peers[0]]
            cells += [f"{row['ours_to_best']:.2f}" if best else "-", f"{row['ours_to_default']:.2f}"]
        if test.n_gen and weights:
            row["weights_gb_per_s"] = {label: rate * weights / 1e9 for label, rate in median.items()}
            row["fraction_of_read"] = {label: gb / read for label, gb in row["weights_gb_per_s"].items()}
            fractions = ", ".join(f"{label} {fraction:.2f}" for label, fraction in row["fraction_of_read"].items())
            row["note"] = f"{test.name}: weights read, as a fraction of the read bandwidth: {fractions}"
        rows.append(row)
        print("| " + " | ".join(cells) + " |")
    for row in rows:
        if "note" in row:
            print("\n" + row["note"])
    return rows


def start_workers(args: argparse.Namespace, path: Path, n_ctx: int) -> list[Entrant]:
    common = {"path": str(path), "threads": args.threads, "n_ctx": n_ctx}
    workers: list[Entrant] = []
    try:
        if not args.peers_only:
            # One context of ours serves every test; the peer makes a second one to decode behind a filled context.
            ours = common | {"n_ctx": n_ctx + max(args.depth)} | json.loads(args.ours_options)
            workers.append(Entrant(OURS, OURS, sys.executable, ours, {}))
        for setting in args.settings:
            engine, options, env = SETTINGS[setting]
            python = args.peer_python if engine == "llama.cpp" else args.ik_python
            if python is None:
                continue
            for flash in {"on": [True], "off": [False], "both": [True, False]}[args.flash]:
                label = setting + ("" if flash else ", no flash")
                workers.append(Entrant(label, engine, python, common | options | {"flash": flash}, env))
    except BaseException:
        for worker in workers:
            worker.close()
        raise
    return workers


def run_model(args: argparse.Namespace, path: Path, bandwidth: Bandwidth) -> dict[str, Any]:
    tests = [Workload(n, 0) for n in args.prefill]
    tests += [Workload(0, args.decode, depth) for depth in args.depth]
    n_ctx = max(1024, max(args.prefill) + 64, args.decode + 64)
    workers = start_workers(args, path, n_ctx)
    try:
        text = (GOLDEN / "text.txt").read_text()
        ids = workers[-1].call("tokenize", text, False, True)
        reference = check(workers, ids, golden_perplexity(path))
        print(f"\n## {path.name}\n\nperplexity, reference {reference:.3f}:")
        for worker in workers:
            found, verdict = worker.perplexity, "" if worker.trusted else " **wrong, not counted**"
            print(
                f"- {worker.label} ({worker.engine} {worker.version}): {found['batched']:.3f}; first {STEPPED_IDS} "
                f"tokens {found['batched_same_ids']:.3f}, one by one {found['stepped']:.3f}{verdict}"
            )
        rates: dict[tuple[str, str], list[float]] = {(w.label, t.name): [] for w in workers for t in tests}
        read: list[float] = []
        for round_ in range(-1, args.rounds):  # round -1 warms up and is not kept
            if round_ >= 0:
                read.append(bandwidth.measure())
            for test in tests:
                first = round_ % len(workers)
                for worker in workers[first:] + workers[:first]:
                    rate = test.tokens / worker.seconds(test, ids, LEAST)
                    if round_ >= 0:
                        rates[worker.label, test.name].append(rate)
            if args.verbose:
                print(f"round {round_ + 1} of {args.rounds}", file=sys.stderr)
        weights = decode_bytes(path)
        print(f"\nread bandwidth, {args.threads} threads ({bandwidth.method}): {spread(read)} GB/s\n")
        print("tokens/s, median (lowest-highest) of the rounds\n")
        rows = table(workers, tests, rates, weights, statistics.median(read))
        return {
            "model": path.name,
            "decode_weight_bytes": weights,
            "reference_perplexity": reference,
            "perplexity": {w.label: w.perplexity | {"right": w.trusted} for w in workers},
            "versions": {w.label: f"{w.engine} {w.version}" for w in workers},
            "read_gb_per_s": read,
            "results": rows,
            "samples": [{"engine": e, "test": t, "tokens_per_s": values} for (e, t), values in rates.items()],
        }
    finally:
        for worker in workers:
            worker.close()


def numbers(text: str) -> list[int]:
    values = [int(part) for part in text.split(",") if part]
    if any(value < 0 for value in values):
        raise argparse.ArgumentTypeError("negative number")
    return values


def setting_names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in SETTINGS]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(SETTINGS)}")
    return names


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-m", "--model", type=Path, action="append", required=True, help="GGUF file; may be given several times")
    add("--peer-python", help="Python of the environment that holds llama-cpp-python")
    add("--ik-python", help="Python of the environment that holds ik-llama-cpp-python")
    add("--peers-only", action="store_true", help="leave hybridkern out")
    add("-t", "--threads", type=int, default=2)
    add("-p", "--prefill", type=numbers, default=[512], help="prompt lengths, comma-separated (default 512)")
    add("-n", "--decode", type=int, default=64, help="tokens to decode (default 64)")
    add("-d", "--depth", type=numbers, default=[0], help="context lengths to decode behind (default 0)")
    add("-r", "--rounds", type=int, default=5)
    add("--settings", type=setting_names, default=list(SETTINGS)[:2], help=f"of {', '.join(SETTINGS)}")
    add("--flash", choices=["on", "off", "both"], default="both", help="the peer's flash attention")
    add("--ours-options", default="{}", help="JSON of further arguments for hybridkern.load")
    add("--out", type=Path, help="write the results as JSON")
    add("-v", "--verbose", action="store_true", help="show progress")
    args = parser.parse_args(argv)
    if args.peers_only and not (args.peer_python or args.ik_python):
        parser.error("--peers-only needs --peer-python or --ik-python")
    if min(args.threads, args.rounds, args.decode, *args.prefill) < 1:
        parser.error("threads, rounds and token counts start at 1")
    for path in args.model:
        if not path.is_file():
            parser.error(f"no such file: {path}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    host = {"cpu": cpu_name(), "cores": os.cpu_count(), "load_average_at_start": os.getloadavg()[0]}
    print(f"# Peers: {host['cpu']}, {host['cores']} cores, {args.threads} threads, commit {commit()}")
    print(f"\nload average at the start {host['load_average_at_start']:.2f}, {args.rounds} rounds")
    with tempfile.TemporaryDirectory() as scratch:
        bandwidth = Bandwidth(args.threads, Path(scratch))
        models = [run_model(args, path, bandwidth) for path in args.model]
    if args.out:
        report = {"host": host, "commit": commit(), "threads": args.threads, "models": models}
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    wrong = [m["model"] for m in models if not m["perplexity"].get(OURS, {"right": True})["right"]]
    if wrong:
        print(f"\nhybridkern's perplexity is wrong on {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
