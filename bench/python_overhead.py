#!/usr/bin/env python3
"""How much Python a greedy token costs: everything between two steps of the engine.

    python bench/python_overhead.py -m model.gguf [-n 256] [-t 1]

What is counted is the time on the clock from the return of one call of the step program, still without the GIL, to the
entry of the next one: the binding, the generator, the detokeniser, the piece, and the loop of whoever consumes the
pieces. The binding takes both times itself, so that nothing stands in between that is not there otherwise. The caches
are as a step leaves them, which is what makes the difference between a tiny model and a real one.

Beside the way that a token normally takes stand the same with a stop string, and the careful way, which every token
takes that is not routine (`Decoding` in kernels/_cpu_decode.pxi). With --profile the functions follow that the time is
spent in, by cProfile, whose own cost makes them larger.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import pstats
import statistics
from typing import Any

import hybridkern as hk
from hybridkern.runtime.session import Session

TARGET_US = 60.0


def generate(model: hk.Model, n: int, **options: Any) -> None:
    """n greedy tokens behind a short prompt; the gaps between their steps are noted."""
    pieces = model.generate("Once upon a time", max_tokens=n + 1, temperature=0, ignore_eos=True, **options)
    next(pieces)
    model.engine._programs[0][1].program.note_gaps(n)
    for _ in pieces:
        pass


def measure(model: hk.Model, n: int, rounds: int, **options: Any) -> list[list[float]]:
    """Microseconds between two steps, of every token but the first, for each round."""
    generate(model, n, **options)
    made = []
    for _ in range(rounds):
        generate(model, n, **options)
        made.append([gap / 1e3 for gap in model.engine._programs[0][1].program.noted_gaps()])
        assert len(made[-1]) >= n - 1
    return made


def measure_careful(model: hk.Model, n: int, rounds: int) -> list[list[float]]:
    """The same where every token takes the careful way."""

    class Careful(Session):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.next_greedy = lambda token: None

    model.session = lambda: Careful(model, model.engine.new_sequence())  # type: ignore[method-assign]
    try:
        return measure(model, n, rounds)
    finally:
        del model.session  # type: ignore[method-assign]


def row(name: str, rounds: list[list[float]]) -> str:
    """A line of the table."""
    gaps = sorted(itertools.chain(*rounds))
    medians = [statistics.median(r) for r in rounds]
    at = [gaps[min(len(gaps) - 1, len(gaps) * p // 100)] for p in (10, 50, 90, 99)]
    figures = "  ".join(f"{value:7.1f}" for value in (*at, statistics.fmean(gaps)))
    return f"{name:14} {figures}   {min(medians):.1f} to {max(medians):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", help="default: the demo model")
    parser.add_argument("-n", type=int, default=256, help="tokens in a round")
    parser.add_argument("-r", type=int, default=5, help="rounds")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="print a profile too")
    args = parser.parse_args()
    with hk.load(args.model, threads=args.threads, n_ctx=args.n + 64) as model:
        plain = measure(model, args.n, args.r)
        print("us a token         p10   median      p90      p99     mean   medians of the rounds")
        print(row("python", plain))
        print(row("  with a stop", measure(model, args.n, args.r, stop=["\0never\0"])))
        print(row("careful way", measure_careful(model, args.n, args.r)))
        found = statistics.median(itertools.chain(*plain))
        verdict = "within" if found <= TARGET_US else "ABOVE"
        print(f"{found:.1f} us a token: {verdict} the target of {TARGET_US:.0f} us")
        if args.profile:
            profile = cProfile.Profile()
            profile.runcall(generate, model, args.n)
            pstats.Stats(profile).sort_stats("tottime").print_stats(12)


if __name__ == "__main__":
    main()
