"""Predicted against measured: loads a model at several placements, and prints t/s of a prompt and of decoding beside
what its plan said; with --budget, fitting against every number of layers that fits.

    python bench/plan_accuracy.py model.gguf [--placements '[{"n_gpu_layers": 20}, {}]'] [--json out.json]
    python bench/plan_accuracy.py model.gguf --budget 3000 --layers 12,13,14,15,16 --rounds 3

With --rounds the placements take turns, and a figure is the median of its rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import hybridkern as hk

PROMPT, TOKENS = 512, 48
PLACEMENTS: list[dict[str, Any]] = [
    {"n_gpu_layers": 0, "device": None},
    {"n_gpu_layers": 0},
    {"n_gpu_layers": 0.15},
    {"n_gpu_layers": 0.3},
    {"n_gpu_layers": 0.5},
    {"n_gpu_layers": 0.65},
    {"n_gpu_layers": 0.8},
    {"n_gpu_layers": 0.9},
    {"n_gpu_layers": "all"},
    {"n_gpu_layers": 0.5, "op_offload": False},
    {"n_gpu_layers": "all", "n_cpu_ffn": 0.4},
    {"n_gpu_layers": "all", "kv_offload": False},
    {"gpu_memory": 0.6},
    {},
]


def placement(p: dict[str, Any], n_layer: int, nbytes: int) -> dict[str, Any]:
    """Arguments of `load`: fractions become layers, or MiB of the model's size and CUDA's share."""
    out = dict(p)
    for name in ("n_gpu_layers", "n_cpu_ffn"):
        if isinstance(out.get(name), float):
            out[name] = round(out[name] * n_layer)
    if isinstance(out.get("gpu_memory"), float):
        out["gpu_memory"] = int(out["gpu_memory"] * nbytes / (1 << 20)) + 560
    return out


def measured(model: hk.Model, n_prompt: int, n: int) -> tuple[float, float]:
    """Tokens a second of a prompt and behind 128 tokens, the better of two."""
    ids = [(7 * i) % model.n_vocab for i in range(n_prompt)]
    model.logits(ids, rows=[-1])
    prompts, answers = [], []
    for _ in range(2):
        begin = time.perf_counter()
        model.logits(ids, rows=[-1])
        prompts.append(len(ids) / (time.perf_counter() - begin))
    for _ in range(2):
        pieces = model.generate(ids[:128], max_tokens=n + 1, temperature=0, ignore_eos=True)
        next(pieces)
        begin = time.perf_counter()
        made = sum(1 for _ in pieces)
        answers.append(made / (time.perf_counter() - begin))
    return max(prompts), max(answers)


def run(path: str, options: dict[str, Any], n_ctx: int, n: int) -> dict[str, Any]:
    """One placement."""
    begin = time.perf_counter()
    with hk.load(path, n_ctx=n_ctx, **options) as model:
        load = time.perf_counter() - begin
        p = model.plan
        prompt, decode = measured(model, p.prompt, n)
        held = p.device("cuda0")
        parts = getattr(model.engine, "parts", {})
        real = sum(getattr(parts.get("cuda0"), "nbytes", {}).values()) if "cuda0" in parts else None
    return {
        "options": options, "load": [p.load, load], "prefill": [p.prefill, prompt], "decode": [p.decode, decode],
        "planned_bytes": held.nbytes if held else 0, "allocated_bytes": real, "streamed": len(p.assignment.streamed),
        "rates": p.rates,
    }  # fmt: skip


def show(row: dict[str, Any]) -> None:
    """One line."""

    def pair(name: str) -> str:
        predicted, found = row[name]
        return f"{predicted:>10,.1f} {found:>10,.1f} {100 * (predicted / found - 1):>+6.0f} %"

    text = " ".join(f"{k}={v}" for k, v in row["options"].items()) or "(auto)"
    print(f"{text:<40} {pair('prefill')} {pair('decode')}   {row['planned_bytes'] >> 20:>6} MiB", flush=True)


def taken_in_turn(args: argparse.Namespace, wanted: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Rounds of every placement; none of what cannot be loaded, which is said."""
    rounds: list[list[dict[str, Any]]] = [[] for _ in wanted]
    for k in range(args.rounds):
        for options, made in zip(wanted, rounds, strict=True):
            if k and not made:
                continue
            try:
                made.append(run(args.model, options, args.c, args.n))
            except hk.HybridKernError as error:
                print(f"{options}: {error}", flush=True)
    return rounds


def median_row(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Pairs of figures as medians, each round's beside them; everything else as in the last round."""
    out = dict(rounds[-1])
    for name in ("load", "prefill", "decode"):
        out[name] = [statistics.median(r[name][i] for r in rounds) for i in (0, 1)]
        out[f"{name}_rounds"] = [r[name] for r in rounds]
    return out


def main() -> None:
    """All placements, or those of a budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("-c", type=int, default=2048, help="context (2048)")
    parser.add_argument("-n", type=int, default=TOKENS, help=f"tokens to decode ({TOKENS})")
    parser.add_argument("--budget", type=int, help="MiB: fitting against fixed numbers of layers")
    parser.add_argument("--layers", default="", help="which numbers of layers, separated by commas (all)")
    parser.add_argument("--placements", help="a list of arguments of `load` as JSON; fractions are of all layers")
    parser.add_argument("--rounds", type=int, default=1, help="times that every placement is measured, in turn (1)")
    parser.add_argument("--json", type=Path, help="keep the figures in this file")
    args = parser.parse_args()
    first = hk.plan(args.model, n_ctx=args.c, n_gpu_layers=0)
    n_layer, size = len(first.rows) - 2, Path(args.model).stat().st_size
    if args.budget:
        layers = [int(x) for x in args.layers.split(",")] if args.layers else range(n_layer + 2)
        wanted: list[dict[str, Any]] = [{"gpu_memory": args.budget}]
        wanted += [{"gpu_memory": args.budget, "n_gpu_layers": n} for n in layers]
    else:
        chosen = json.loads(args.placements) if args.placements else PLACEMENTS
        wanted = [placement(p, n_layer, size) for p in chosen]
    print(f"{'placement':<40} {'prefill: plan':>10} {'found':>7} {'':>8} {'decode: plan':>10} {'found':>7}")
    rows = []
    for rounds in taken_in_turn(args, wanted):
        if rounds:
            rows.append(median_row(rounds))
            show(rows[-1])
    for name in ("prefill", "decode"):
        off = [abs(r[name][0] / r[name][1] - 1) for r in rows]
        if off:
            print(f"{name}: {100 * statistics.median(off):.0f} % off in the median, {100 * max(off):.0f} % at most")
    if args.budget and len(rows) > 1:
        for name in ("prefill", "decode"):
            best = max(r[name][1] for r in rows[1:])
            print(
                f"{name}: fitting {rows[0][name][1]:,.1f} t/s, {100 * rows[0][name][1] / best:.0f} % of the best -ngl"
            )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
