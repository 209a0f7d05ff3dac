"""Measure prompt and generation speed, on the CPU beside the peaks of this machine measured in the same run.

Prompts (pp) are random tokens on a fresh sequence with logits at the last one; generation (tg) is greedy, from one
token on, sampling and detokenising included. A rate is the median of the repetitions.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridkern.errors import ArgumentError

from .doctor import cpu_name
from .flags import add_context, add_model, load_arguments
from .generate import open_model
from .terminal import console, note, waiting, write
from .values import integer

if TYPE_CHECKING:
    from hybridkern import Model


LONGEST = 1 << 24  # tokens; no context is longer, and their ids would fill the memory before anything is refused


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add_model(parser)
    group = parser.add_argument_group("what to measure")
    group.add_argument(
        "-p", "--n-prompt", type=integer(0, LONGEST), default=512, metavar="N", help="prompt tokens; 0: none (512)"
    )
    group.add_argument(
        "-n", "--n-gen", type=integer(0, LONGEST), default=64, metavar="N", help="tokens to generate (64)"
    )
    group.add_argument("-r", "--repetitions", type=integer(1, 1000), default=3, metavar="N", help="repetitions (3)")
    group.add_argument(
        "-d", "--n-depth", type=integer(0, LONGEST), default=0, metavar="N", help="context before generation (0)"
    )
    group.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    add_context(parser)


def run(args: argparse.Namespace) -> int:
    """Load, measure, show."""
    if not args.n_prompt and not args.n_gen:
        raise ArgumentError("-p 0 -n 0: nothing to measure")
    options = load_arguments(args)
    if args.ctx_size is None:
        options["n_ctx"] = max(2, args.n_prompt, args.n_depth + args.n_gen + 1)
    with open_model(args, options) as model, waiting("measuring"):
        record = measure(model, args)
    if args.json:
        write(json.dumps(record) + "\n")
    else:
        show(record)
    return 0


def measure(model: Model, args: argparse.Namespace) -> dict[str, Any]:
    """The whole record, with the keys of the JSON output."""
    from hybridkern.kernels import active
    from hybridkern.runtime.cost import decode_cost, prompt_cost

    gpu = model.engine.part.gpu
    peaks = measure_peaks(model.engine.threads) if gpu is None else {"read_gb_per_s": 0.0, "int8_gmac_per_s": 0.0}
    rng = np.random.default_rng(0)
    results = []
    if args.n_prompt:
        ids = rng.integers(0, model.n_vocab, args.n_prompt).tolist()
        seconds = _repeat(lambda: time_prompt(model, ids), args.repetitions)
        cost = prompt_cost(model.loaded, args.n_prompt, model.engine.n_ubatch, model.kv_type)
        results.append(_result(f"pp{args.n_prompt}", args.n_prompt, seconds, cost, peaks))
    if args.n_gen:
        start = rng.integers(0, model.n_vocab, max(1, args.n_depth)).tolist()
        seconds = _repeat(lambda: time_decode(model, start, args.n_gen), args.repetitions)
        cost = decode_cost(model.loaded, len(start), args.n_gen, model.kv_type)
        name = f"tg{args.n_gen}" + (f"@d{args.n_depth}" if args.n_depth else "")
        results.append(_result(name, args.n_gen, seconds, cost, peaks))
    return {
        "model": Path(model.file.path).name,
        "host": f"{cpu_name()}, {platform.system()} {platform.machine()}",
        "commit": _commit(),
        "kernel_set": active() if gpu is None else f"cuda, {gpu}",
        "threads": model.engine.threads,
        "peaks": peaks,
        "results": results,
    }


def measure_peaks(threads: int) -> dict[str, float]:
    """What memory and multiply units give at most, with the model's threads and the CPU's kernel set."""
    from hybridkern.kernels.rates import int8_rate, read_rate

    return {
        "read_gb_per_s": round(read_rate(threads) / 1e9, 3),
        "int8_gmac_per_s": round(int8_rate(threads) / 1e9, 3),
    }


def time_prompt(model: Model, ids: list[int]) -> float:
    """Seconds for a prompt on a fresh sequence."""
    begin = time.perf_counter()
    model.logits(ids, rows=[-1])
    return time.perf_counter() - begin


def time_decode(model: Model, start: list[int], n: int) -> float:
    """Seconds for n greedy tokens behind `start`; the token that the prompt's step gives is not counted."""
    pieces = model.generate(start, max_tokens=n + 1, temperature=0, ignore_eos=True)
    next(pieces)
    begin = time.perf_counter()
    for _ in pieces:
        pass
    return time.perf_counter() - begin


def _repeat(work: Callable[[], float], n: int) -> list[float]:
    work()  # touches the pages, wakes the threads
    return [work() for _ in range(n)]


def _result(test: str, n: int, seconds: list[float], cost: Any, peaks: dict[str, float]) -> dict[str, Any]:
    middle = statistics.median(seconds)
    gmac, gb = cost.macs / middle / 1e9, cost.bytes / middle / 1e9
    return {
        "test": test,
        "tokens_per_s": round(n / middle, 3),
        "min": round(n / max(seconds), 3),
        "max": round(n / min(seconds), 3),
        "gmac_per_s": round(gmac, 3),
        "fraction_of_int8_peak": _fraction(gmac, peaks["int8_gmac_per_s"]),
        "gb_per_s": round(gb, 3),
        "fraction_of_read": _fraction(gb, peaks["read_gb_per_s"]),
    }


def _fraction(value: float, peak: float) -> float | None:
    return round(value / peak, 4) if peak else None


def _commit() -> str | None:
    """The commit of the source tree that this package runs from, None for an installed one."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "pyproject.toml").is_file():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def show(record: dict[str, Any]) -> None:
    """The record as a table."""
    from rich.table import Table

    out = console()
    title = f"{record['model']} on {record['host']}: {record['kernel_set']}, {record['threads']} threads"
    table = Table(
        "test", "t/s", "min", "max", "GMAC/s", "of peak", "GB/s", "of read", title=title, title_justify="left"
    )
    for row in record["results"]:
        rates = [f"{row[key]:.1f}" for key in ("tokens_per_s", "min", "max")]
        parts = [_percent(row["fraction_of_int8_peak"]), f"{row['gb_per_s']:.1f}", _percent(row["fraction_of_read"])]
        table.add_row(row["test"], *rates, f"{row['gmac_per_s']:.1f}", *parts)
    out.print(table)
    peaks = record["peaks"]
    if peaks["read_gb_per_s"]:
        note(f"peaks of this run: read {peaks['read_gb_per_s']:.1f} GB/s, int8 {peaks['int8_gmac_per_s']:.1f} GMAC/s")


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:.0f} %"
