"""Workloads, named as llama.cpp names its tests, and how long a model takes for one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridkern.runtime.session import Session


@dataclass(frozen=True)
class Workload:
    """A prompt of n_prompt tokens at once, then n_gen tokens one after the other, behind n_depth tokens."""

    n_prompt: int
    n_gen: int
    n_depth: int = 0

    @property
    def name(self) -> str:
        """pp512, tg64, pp512+tg64; pp512 @ d1024."""
        parts = [f"pp{self.n_prompt}"] * bool(self.n_prompt) + [f"tg{self.n_gen}"] * bool(self.n_gen)
        return "+".join(parts) + (f" @ d{self.n_depth}" if self.n_depth else "")

    @property
    def tokens(self) -> int:
        """That a rate counts."""
        return self.n_prompt + self.n_gen

    @property
    def context(self) -> int:
        """Tokens that the context must hold: without a depth, one stands before what is generated."""
        return max(2, self.n_depth + self.n_prompt + self.n_gen + 1)

    def ids(self, ids: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """Tokens of the depth, of the prompt and of the steps, from `ids` over and over."""

        def some(first: int, n: int) -> list[int]:
            return [ids[i % len(ids)] for i in range(first, first + n)]

        return some(0, self.n_depth), some(self.n_depth, self.n_prompt), some(self.n_depth, self.n_gen)


def workloads(
    n_prompt: Iterable[int], n_gen: Iterable[int], both: Iterable[tuple[int, int]], depths: Iterable[int]
) -> list[Workload]:
    """Every prompt, every generation and every pair at every depth, each once; 0 tokens are nothing to do."""
    pairs = [*((n, 0) for n in n_prompt), *((0, n) for n in n_gen), *both]
    return list(dict.fromkeys(Workload(p, n, d) for d, (p, n) in product(depths, pairs) if p or n))


def seconds(session: Session, work: Workload, ids: Sequence[int]) -> float:
    """Of one run, greedy, sampling and detokenising included. What the session holds of the depth stays, so
    it is computed once. Behind a prompt, or behind the depth, the first token comes from the step before."""
    before, prompt, _ = work.ids(ids)
    if prompt:
        if before:
            session.logits(before, rows=[-1])
        else:
            session.take_over()
            session.keep_prefix([], 0)
        begin = time.perf_counter()
        if not work.n_gen:
            session.logits(before + prompt, rows=[-1])
            return time.perf_counter() - begin
    start = before + prompt or [ids[0]]
    pieces = session.generate(start, max_tokens=work.n_gen + 1, temperature=0, ignore_eos=True)
    if not prompt:
        next(pieces)
        begin = time.perf_counter()
    made = sum(1 for _ in pieces)
    end = time.perf_counter() - begin
    assert made == work.n_gen + bool(prompt), f"{made} tokens came"
    return end
