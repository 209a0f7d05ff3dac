"""The search for threads, tokens of a step and placement, around what the plan would choose.

Pure: what a choice is worth is asked of `run`. Threads come first, since another number of them needs no load; then the
placements, in the order of their predictions; then tokens of a step; then threads again if anything else has changed.
What wins is measured again beside what it began with, and must be better by more than noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hybridkern.plan.fitting import ANSWER, LONG_PROMPT, LONG_SHARE, PROMPT

GAIN = 0.02  # by which a winner must be better than the beginning: less is noise
STEP = 0.01  # by which a step of the search must be better
CONFIRMING = 0.3  # of the budget, left for measuring the winner again
LEAST_UBATCH, MOST_UBATCH = 64, 4096


@dataclass(frozen=True)
class Choice:
    """Numbers of `load`. n_gpu_layers: None is the plan's own placement."""

    threads: int
    threads_batch: int
    n_ubatch: int
    n_gpu_layers: int | str | None = None
    n_cpu_ffn: int = 0

    @property
    def placement(self) -> tuple[int | str | None, int]:
        """Where things lie."""
        return self.n_gpu_layers, self.n_cpu_ffn

    def flags(self) -> str:
        """As they are written on a command line."""
        out = [f"-t {self.threads}"]
        out += [f"-tb {self.threads_batch}"] * (self.threads_batch != self.threads)
        out.append(f"-ub {self.n_ubatch}")
        out += [f"-ngl {self.n_gpu_layers}"] * (self.n_gpu_layers is not None)
        out += [f"--n-cpu-ffn {self.n_cpu_ffn}"] * bool(self.n_cpu_ffn)
        return " ".join(out)


@dataclass(frozen=True)
class Trial:
    """What was measured, tokens a second; prefill_long: of a long prompt, None where that was not measured; longest:
    tokens of the longest prompt; error: why the choice cannot be used."""

    choice: Choice
    prefill: float = 0.0
    decode: float = 0.0
    prefill_long: float | None = None
    longest: int = PROMPT
    error: str = ""

    @property
    def seconds(self) -> float:
        """What the plan makes least: a prompt of 512 tokens, an answer of 256, and a tenth of a prompt of 2,048."""
        if self.error:
            return float("inf")
        long = self.prefill_long or self.prefill
        return PROMPT / self.prefill + ANSWER / self.decode + LONG_SHARE * LONG_PROMPT / long


@dataclass(frozen=True)
class Space:
    """threads, ubatches: numbers that may be tried, ascending; placements: in the order in which they are."""

    threads: Sequence[int]
    ubatches: Sequence[int]
    placements: Sequence[tuple[int | str | None, int]] = ()


@dataclass
class Found:
    """trials: in their order, each choice with what was measured last; complete: whether the budget was enough."""

    winner: Trial
    start: Trial
    trials: list[Trial] = field(default_factory=list)
    complete: bool = True


class _SpentError(Exception):
    """The budget."""


Run = Callable[[Choice, bool], Trial]  # the choice, and whether to measure anew what is known


def thread_numbers(usual: int, logical: int) -> list[int]:
    """Around the usual number: halves, some less, and all logical CPUs."""
    near = {usual - 2, usual - 1, usual, usual * 3 // 4, usual * 3 // 2, logical}
    halves = {usual >> i for i in range(8)}
    return sorted(n for n in near | halves if 1 <= n <= max(logical, usual))


def ubatches_for(n_batch: int, n_ctx: int, usual: int) -> list[int]:
    """Powers of two that a step may have, and the usual number."""
    most = min(n_batch, MOST_UBATCH, max(LEAST_UBATCH, n_ctx))
    powers = {LEAST_UBATCH << i for i in range(12)}
    return sorted({n for n in powers if n <= most} | {usual})


def search(start: Choice, space: Space, run: Run, budget: float, clock: Callable[[], float] = time.monotonic) -> Found:
    """Within `budget` seconds, the first trial apart, which is made in any case. Raises what that one raises."""
    s = _Search(start, space, run, budget, clock)
    return s.go()


class _Search:
    def __init__(self, start: Choice, space: Space, run: Run, budget: float, clock: Callable[[], float]) -> None:
        self._space, self._run, self._clock = space, run, clock
        self._begin, self._budget = clock(), budget
        self._longest: dict[bool, float] = {}  # seconds of a trial, by whether it loads
        self._loaded: Any = None
        self._known: dict[Choice, Trial] = {}
        self._start = start

    def go(self) -> Found:
        first = best = self._try(self._start, sure=True)
        complete = True
        try:
            best = self._threads(best)
            placed = self._placements(best)
            sized = self._climb(placed, "n_ubatch", self._space.ubatches)
            if sized.choice != best.choice:
                sized = self._threads(sized)
            best = sized
        except _SpentError:
            best, complete = min(self._known.values(), key=lambda t: t.seconds), False
        first, best = self._confirmed(first, best)
        return Found(best, first, list(self._known.values()), complete)

    def _try(self, choice: Choice, sure: bool = False, again: bool = False, until: float = 1 - CONFIRMING) -> Trial:
        """Measures, unless it was before. Raises _SpentError where there is no time for it."""
        if choice in self._known and not again:
            return self._known[choice]
        loads = self._load_key(choice) != self._loaded
        left = until * self._budget - (self._clock() - self._begin)
        if not sure and left < self._longest.get(loads, self._longest.get(True, 0.0)):
            raise _SpentError
        begin = self._clock()
        made = self._run(choice, again)
        if not made.error:
            self._loaded = self._load_key(choice)
            self._longest[loads] = max(self._longest.get(loads, 0.0), self._clock() - begin)
        self._known[choice] = made
        return made

    @staticmethod
    def _load_key(choice: Choice) -> Any:
        return choice.n_ubatch, choice.placement

    def _threads(self, best: Trial) -> Trial:
        for name in ("threads", "threads_batch"):
            best = self._climb(best, name, self._space.threads)
        return best

    def _climb(self, best: Trial, name: str, values: Sequence[int]) -> Trial:
        """From neighbour to neighbour, as long as that is better; first up, then down."""
        for step in (1, -1):
            moved = False
            while True:
                at = values.index(getattr(best.choice, name)) + step
                if not 0 <= at < len(values) or (name == "n_ubatch" and values[at - step] >= best.longest and step > 0):
                    break  # a prompt that is one step anyhow tells nothing of longer ones
                tried = self._try(replace(best.choice, **{name: values[at]}))
                if tried.seconds > best.seconds * (1 - STEP):
                    break
                best, moved = tried, True
            if moved:
                break
        return best

    def _placements(self, best: Trial) -> Trial:
        for layers, ffn in self._space.placements:
            tried = self._try(replace(best.choice, n_gpu_layers=layers, n_cpu_ffn=ffn))
            if tried.seconds < best.seconds * (1 - STEP):
                best = tried
        return best

    def _confirmed(self, first: Trial, best: Trial) -> tuple[Trial, Trial]:
        """Both once more, the winner first, which may be loaded still; the beginning unless the winner is better."""
        if best.choice == first.choice:
            return first, first
        try:
            best = self._try(best.choice, again=True, until=1.0)
            first = self._try(first.choice, again=True, until=1.0)
        except _SpentError:
            pass  # what was measured before has to do
        return first, best if best.seconds < first.seconds * (1 - GAIN) else first
