"""Quantise one F16 file with hybridkern and with llama.cpp's own quantiser, and compare what comes out.

    python bench/quantize.py model-f16.gguf --peer-python VENV/bin/python --text some.txt --chunks 10 -t 2

For every type, in one run: seconds a GB of the source, bytes, perplexity and KL divergence from the source (both files
in this engine, over the same chunks of 512 tokens), and whether an independent engine that loads our file chooses the
same tokens as this one, where its choice is clear (a margin above 0.2). Both write to the same folder (--folder: one in
memory, so that no disk is measured). Prints a Markdown table, and JSON with --json.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import hybridkern as hk
from hybridkern.gguf import GGUFFile
from hybridkern.quantize import Wishes, file_type_named, plan, quantize_file
from hybridkern.runtime.logit_base import LogitBase, LogitWriter
from hybridkern.runtime.perplexity import cut, mean_and_error, measure

PEER = Path(__file__).with_name("quantize_peer.py")
PROMPTS = ("The three primary colours are", "Once upon a time there was", "Water boils when", "In 1969")
N_GREEDY, CLEAR = 32, 0.2
CHUNK = 512


def ours(source: Path, target: Path, name: str, threads: int) -> float:
    """Seconds of our quantiser."""
    begin = time.perf_counter()
    with GGUFFile.open(source) as file:
        kind = file_type_named(name)
        quantize_file(file, target, kind, plan(file, kind, Wishes()), threads=threads)
    return time.perf_counter() - begin


def peer(python: str, words: list[Any], given: Any = None) -> Any:
    """An answer of the worker."""
    command = [python, str(PEER), *map(str, words)]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def quality(path: Path, base: LogitBase, threads: int) -> dict[str, Any]:
    """Perplexity, and how far it is from the base."""
    with hk.load(path, n_ctx=base.n_ctx, threads=threads) as model:
        score = measure(model, base.chunks, base=base)
    return {
        "nll": score.nll,
        "perplexity": score.perplexity[0],
        "kl": float(np.mean(score.kl)),
        "same_top": float(np.mean(score.same)),
    }


def greedy(path: Path, threads: int) -> tuple[list[list[int]], list[int]]:
    """Prompts with what this engine writes behind them, and how long the prompts are."""
    texts, lengths = [], []
    with hk.load(path, n_ctx=CHUNK, threads=threads) as model:
        for prompt in PROMPTS:
            ids = model.prompt_ids(prompt)
            pieces = model.generate(ids, max_tokens=N_GREEDY, temperature=0, ignore_eos=True)
            texts.append(ids + [piece.token_id for piece in pieces])
            lengths.append(len(ids))
    return texts, lengths


def agreement(python: str, path: Path, threads: int) -> dict[str, int]:
    """How often the independent engine chooses what this one wrote."""
    texts, lengths = greedy(path, threads)
    found = peer(python, ["follow", path, threads], texts)
    clear = same = all_same = total = 0
    for ids, n, choices in zip(texts, lengths, found, strict=True):
        for at in range(n, len(ids)):
            token, margin = choices[at - 1]
            total += 1
            all_same += token == ids[at]
            clear += margin > CLEAR
            same += margin > CLEAR and token == ids[at]
    return {"tokens": total, "same": all_same, "clear": clear, "same_where_clear": same}


def one_type(args: argparse.Namespace, name: str, base: LogitBase | None, folder: Path) -> dict[str, Any]:
    """Everything about one file type."""
    a, b = folder / "ours.gguf", folder / "peer.gguf"
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    words = ["quantize", args.model, b, file_type_named(name).id, args.threads]
    for _ in range(args.repetitions):  # taking turns
        times["ours"].append(ours(args.model, a, name, args.threads))
        times["peer"].append(peer(args.peer_python, words)["seconds"])
    if base is None:
        record: dict[str, Any] = {"type": name}
        for who, path in (("ours", a), ("peer", b)):
            record[who] = {"seconds": min(times[who]), "bytes": path.stat().st_size}
            path.unlink()
        return record
    made: dict[str, Any] = {"type": name, "agreement": agreement(args.peer_python, a, args.threads)}
    for who, path in (("ours", a), ("peer", b)):
        made[who] = {"seconds": min(times[who]), "bytes": path.stat().st_size, **quality(path, base, args.threads)}
    difference, error = mean_and_error((np.subtract(made["ours"].pop("nll"), made["peer"].pop("nll"))).tolist())
    made["perplexity_ratio"], made["ratio_error"] = math.exp(difference), error
    a.unlink()
    b.unlink()
    return made


def make_base(args: argparse.Namespace, path: Path) -> LogitBase:
    """The predictions of the source over the text."""
    with hk.load(args.model, n_ctx=CHUNK, threads=args.threads) as model:
        chunks = cut(model.tokenize(args.text.read_text()), CHUNK, args.chunks)
        with LogitWriter(path, chunks, model.n_vocab) as save:
            whole = measure(model, chunks, save=save).perplexity[0]
    print(f"{args.model.name}: perplexity {whole:.3f} over {len(chunks)} chunks; t = {args.threads}\n")
    return LogitBase.open(path)


def row(r: dict[str, Any], size: int) -> str:
    """One line of the table."""
    a, b = r["ours"], r["peer"]
    cells = [r["type"], *(f"{x['seconds'] / size * 1e9:.2f}" for x in (a, b)), a["bytes"]]
    cells.append(f"{a['bytes'] / b['bytes']:.6f}")
    if "agreement" in r:
        g = r["agreement"]
        cells += [f"{x['perplexity']:.3f}" for x in (a, b)]
        cells.append(f"{r['perplexity_ratio']:.4f} +/- {r['ratio_error']:.4f}")
        cells += [f"{x['kl']:.4f}" for x in (a, b)]
        cells.append(f"{g['same_where_clear']} of {g['clear']} clear, {g['same']} of {g['tokens']}")
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="an F16 file")
    parser.add_argument("--peer-python", required=True, help="a Python that has llama-cpp-python")
    parser.add_argument("--text", type=Path, help="what perplexity is measured over")
    parser.add_argument("--times-only", action="store_true", help="no perplexity, no generation")
    parser.add_argument("--chunks", type=int, default=10)
    parser.add_argument("--types", default="Q8_0,Q6_K,Q4_K_M,Q2_K")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-r", "--repetitions", type=int, default=2, help="the best time counts (2)")
    parser.add_argument("--folder", default="/dev/shm", help="where the files go (/dev/shm)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    size = args.model.stat().st_size
    if args.text is None and not args.times_only:
        parser.error("--text is needed, or --times-only")
    with tempfile.TemporaryDirectory(dir=args.folder) as made:
        base = None if args.times_only else make_base(args, Path(made) / "base")
        print("| type | s a GB | peer | bytes | of the peer's | perplexity | peer | ratio | KL | peer | same tokens |")
        print("|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
        records = []
        for name in args.types.split(","):
            records.append(one_type(args, name, base, Path(made)))
            print(row(records[-1], size), flush=True)
    if args.json:
        args.json.write_text(json.dumps({"model": args.model.name, "bytes": size, "types": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
