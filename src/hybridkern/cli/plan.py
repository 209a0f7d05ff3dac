"""Draw where a model's parts would lie, and how fast that would be. No tensor data are read.

With --gpu-memory and without a GPU, one of that size is pretended. --plot draws the memory of every device and the
predicted time of every block into a picture, beside measured times from a JSON file of `hybridkern bench`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridkern.errors import ArgumentError

from .dry_run import made_plan
from .flags import add_context, add_model, load_arguments
from .placement_flags import keep_plan
from .plan_view import block_table, memory_table
from .terminal import console, size, write

if TYPE_CHECKING:
    from hybridkern import Plan

OURS = "hybridkern"  # engine of rows that are no peer's
_WIDTH = 60  # characters of a bar
_MARKS = {"weights": "#", "KV cache": "k", "buffers": "b"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add_model(parser)
    parser.add_argument("--json", action="store_true", help="the plan as JSON, as --plan saves it")
    parser.add_argument("--plot", type=Path, metavar="OUT.PNG", help="draw a picture (needs matplotlib)")
    parser.add_argument(
        "--bench", type=Path, metavar="FILE", help="a result of `hybridkern bench --json`, to compare with"
    )
    add_context(parser)


def run(args: argparse.Namespace) -> int:
    """Plan and draw."""
    measured = _measured(args.bench)
    plan = made_plan(args, load_arguments(args))
    keep_plan(args, plan)
    if args.json:
        write(plan.to_json())
    else:
        show(plan, measured)
    if args.plot is not None:
        from .plot import draw

        draw(plan, args.plot, measured)
    return 0


def show(plan: Plan, measured: dict[str, float]) -> None:
    """Bars of memory, the tables, the figures."""
    out = console()
    for d in plan.devices:
        whole = d.usable if d.usable is not None and d.usable < 1 << 50 else d.nbytes
        bar = "".join(
            _MARKS.get(what, "o") * max(1, round(_WIDTH * n / max(whole, 1)))
            for what, n in sorted(d.memory.items(), key=lambda item: -item[1])
            if n > whole / (2 * _WIDTH)
        )
        write(f"{d.name:>6} |{bar[:_WIDTH]:<{_WIDTH}}| {size(d.nbytes)} of {size(whole)}\n")
    write(f"{'':>7} # weights, k KV cache, b buffers, o other\n")
    out.print(memory_table(plan))
    out.print(block_table(plan))
    for line in plan.summary():
        write(line + "\n")
    for test, rate in measured.items():
        predicted = plan.prefill if test.startswith("pp") else plan.decode
        write(f"{test}: measured {rate:,.1f} t/s, predicted {predicted:,.1f} ({100 * (predicted / rate - 1):+.0f} %)\n")


def _measured(path: Path | None) -> dict[str, float]:
    """Tokens a second by test."""
    if path is None:
        return {}
    try:
        record: Any = json.loads(path.read_text(encoding="utf-8"))
        ours = [row for row in record["results"] if row.get("engine", OURS) == OURS]
        return {row["test"]: float(row["tokens_per_s"]) for row in reversed(ours)}  # of a sweep the first
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArgumentError(f"--bench {path}: this is no result of `hybridkern bench --json`: {error}") from error
