#!/usr/bin/env python3
"""Tokens per second of processor time of one thread: prompts of several lengths and decoding, packed and as raw rows.

    python bench/one_thread.py -m model.gguf [-r 5] [-p 8 32 128 256] [-n 8]

For hosts that others use too: what counts is this thread's own time, not the clock's. All take turns; medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import hybridkern as hk


def rate(tokens: int, run: Callable[[], object]) -> float:
    """Tokens per second of processor time."""
    start = time.thread_time()
    run()
    return tokens / (time.thread_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("-p", "--prompts", type=int, nargs="*", default=[8, 32, 128, 256])
    parser.add_argument("-n", "--decode", type=int, default=8)
    args = parser.parse_args()
    made: dict[tuple[str, str], list[float]] = {}
    engines = {
        name: hk.load(args.model, threads=1, n_ctx=1024, repack=repack).engine
        for name, repack in (("packed", True), ("raw", False))
    }
    for _ in range(args.rounds):
        for name, engine in engines.items():
            for n in args.prompts:
                s, again = engine.new_sequence(), max(1, 32 // n)

                def prompts(n: int = n, s: int = s, again: int = again, engine: object = engine) -> None:
                    for _ in range(again):
                        engine.evaluate(s, [5] * n, "last")  # type: ignore[attr-defined]
                        engine.truncate(s, 0)  # type: ignore[attr-defined]

                made.setdefault((name, f"prompt {n}"), []).append(rate(n * again, prompts))
                engine.free(s)
            s = engine.new_sequence()
            engine.evaluate(s, [5] * 64, "last")
            made.setdefault((name, f"decode {args.decode}"), []).append(
                rate(args.decode, lambda engine=engine, s=s: [engine.greedy(s, 7) for _ in range(args.decode)])
            )
            engine.free(s)
    for (name, what), rates in made.items():
        print(f"{name:7} {what:11} {statistics.median(rates):7.1f} tokens/s ({min(rates):.1f}-{max(rates):.1f})")


if __name__ == "__main__":
    main()
