#!/usr/bin/env python3
"""How much Python a greedy token costs: engine wrapper, detokeniser, stop strings and Piece, without the C call.

    python bench/python_overhead.py -m model.gguf [-n 256]

The processor time of the calling thread for a greedy generation, less what it spends inside the extension's step call,
per token. Processor time, so that other work on the machine counts as little as it can; the clock around the call is
not taken off. Behind it the functions that the rest is spent in, by cProfile, whose own cost makes them larger.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from typing import Any

import hybridkern as hk

TARGET_US = 60.0


class Clocked:
    """Stands in for an object and adds up the time spent inside one of its methods."""

    def __init__(self, inner: Any, method: str) -> None:
        self._inner = inner
        self._call = getattr(inner, method)
        self._method = method
        self.seconds = 0.0
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return self._timed if name == self._method else getattr(self._inner, name)

    def _timed(self, *arguments: Any, **named: Any) -> Any:
        begin = time.thread_time()
        try:
            return self._call(*arguments, **named)
        finally:
            self.seconds += time.thread_time() - begin
            self.calls += 1


def generate(model: hk.Model, n: int) -> float:
    """Processor seconds for n greedy tokens behind a short prompt, without the prompt's step."""
    pieces = model.generate("Once upon a time", max_tokens=n + 1, temperature=0, ignore_eos=True, stop=["\0never\0"])
    next(pieces)
    begin = time.thread_time()
    made = sum(1 for _ in pieces)
    seconds = time.thread_time() - begin
    assert made == n
    return seconds


def measure(model: hk.Model, n: int, rounds: int) -> tuple[list[float], list[float]]:
    """Microseconds a token outside of the step call and inside of it, for each round."""
    owner, name, method = model.engine._stepper, "program", "decode"  # the one call into C of a greedy token
    inner = getattr(owner, name)
    outside, inside = [], []
    generate(model, n)
    for _ in range(rounds):
        clocked = Clocked(inner, method)
        setattr(owner, name, clocked)
        seconds = generate(model, n)
        setattr(owner, name, inner)
        assert clocked.calls >= n
        inside.append(clocked.seconds / n * 1e6)
        outside.append(seconds / n * 1e6 - inside[-1])
    return outside, inside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", help="default: the demo model")
    parser.add_argument("-n", type=int, default=256, help="tokens in a round")
    parser.add_argument("-r", type=int, default=5, help="rounds")
    parser.add_argument("-t", "--threads", type=int, default=1)
    args = parser.parse_args()
    with hk.load(args.model, threads=args.threads, n_ctx=args.n + 64) as model:
        outside, inside = measure(model, args.n, args.r)
        print(f"step call: {statistics.median(inside):.1f} us a token")
        verdict = "within" if statistics.median(outside) <= TARGET_US else "ABOVE"
        print(f"python:    {statistics.median(outside):.1f} us a token ({verdict} the target of {TARGET_US:.0f} us)")
        profile = cProfile.Profile()
        profile.runcall(generate, model, args.n)
        pstats.Stats(profile).sort_stats("tottime").print_stats(12)


if __name__ == "__main__":
    main()
