"""Measures choices of the search on a model, which is loaded again only where it must be."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hybridkern.errors import HybridKernError
from hybridkern.plan.fitting import LONG_PROMPT, PROMPT

from .search import Choice, Trial
from .timing import Workload, seconds

if TYPE_CHECKING:
    from hybridkern import Model, Plan
    from hybridkern.runtime.session import Session

REPEATS = 3
PART = 0.04  # of the budget, for a run of one workload at most
SHORTEST, LONGEST_ANSWER = 16, 64
TRIED, NEAR = 6, 1.5  # placements, of those that are predicted best, and how much slower than the plan's these may be
BESIDE = 2  # blocks more or less than the plan's


class Trials:
    """Of the model at `path`. options: the other arguments of `load`; budget: seconds of the whole search, by which the
    workloads are chosen; tell: what is under way. Closes what it has loaded."""

    def __init__(self, path: str, options: dict[str, Any], budget: float, tell: Callable[[str], None]) -> None:
        self._path, self._options, self._budget, self._tell = path, options, budget, tell
        self._model: Model | None = None
        self._session: Session | None = None
        self._loaded: Any = None
        self._ids: list[int] = []
        self._samples: dict[tuple[Any, Workload], list[float]] = {}
        self._prompt = self._long = self._answer = Workload(0, 1)
        self.plans: dict[Choice, Plan] = {}

    def __call__(self, choice: Choice, again: bool = False) -> Trial:
        """Loads if needed, and measures what is not known yet; again: everything, beside what is known."""
        self._tell(choice.flags())
        try:
            model = self._open(choice)
            model.engine.use_threads(choice.threads, choice.threads_batch)
            if not self._ids:
                self._choose(model)
            placed = (choice.n_ubatch, choice.placement)
            prompt = self._rate((placed, choice.threads_batch), self._prompt, again)
            long = self._rate((placed, choice.threads_batch), self._long, again) if self._long.n_prompt else None
            answer = self._rate((placed, choice.threads), self._answer, again)
        except HybridKernError as error:
            if not self._samples:
                raise
            return Trial(choice, error=" ".join(str(error).split()))
        self.plans[choice] = model.plan
        return Trial(choice, prompt, answer, long, max(self._prompt.n_prompt, self._long.n_prompt))

    def _open(self, choice: Choice) -> Model:
        from hybridkern import load

        key = (choice.n_ubatch, choice.placement)
        if self._model is None or self._loaded != key:
            self.close()
            chosen = {"n_ubatch": choice.n_ubatch, "n_gpu_layers": choice.n_gpu_layers, "n_cpu_ffn": choice.n_cpu_ffn}
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".* wins over ")  # of rules that are ours
                self._model = load(self._path, **self._options | chosen)
            self._session, self._loaded = self._model.session(), key
        return self._model

    def _choose(self, model: Model) -> None:
        """Workloads that the budget allows, from a short one."""
        import numpy as np

        self._ids = np.random.default_rng(0).integers(0, model.n_vocab, 1 << 12).tolist()
        assert self._session is not None
        room = model.n_ctx - LONGEST_ANSWER - 1
        part, n = PART * self._budget / REPEATS, SHORTEST
        for _ in range(2):
            took = seconds(self._session, Workload(n, 0), self._ids)
        while 2 * n <= min(PROMPT, room) and 2 * took <= part:
            n, took = 2 * n, 2 * took
        self._prompt = Workload(n, 0)
        long = n == PROMPT and room >= LONG_PROMPT and took * LONG_PROMPT / PROMPT <= part
        self._long = Workload(LONG_PROMPT if long else 0, 0)
        step = seconds(self._session, Workload(0, 4), self._ids) / 4
        answer = max(8, min(LONGEST_ANSWER, int(part / step)))
        self._answer = Workload(0, min(answer, max(1, room - n)), n if room > n else 0)

    def _rate(self, key: Any, work: Workload, again: bool) -> float:
        """Tokens a second, the median of all runs."""
        assert self._session is not None
        samples = self._samples.setdefault((key, work), [])
        if again or not samples:
            if not samples:
                seconds(self._session, work, self._ids)  # touches pages, wakes threads
            samples += [seconds(self._session, work, self._ids) for _ in range(REPEATS)]
        return work.tokens / statistics.median(samples)

    def close(self) -> None:
        """Give the model's memory back."""
        if self._model is not None:
            assert self._session is not None
            self._session.close()
            self._model.close()
            self._model = self._session = None

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def placements_around(made: Plan, plan_of: Callable[..., Plan]) -> list[tuple[int | str | None, int]]:
    """Placements worth a trial where a GPU has a part, best prediction first: some blocks more or less than the plan's,
    everything, nothing, and feed-forward networks in main memory. plan_of(n_gpu_layers, n_cpu_ffn) raises what does not
    fit."""
    rows = [row for row in made.table() if row.name.startswith("blk.")]
    whole = sum("cpu" not in row.device for row in rows)
    wanted: list[tuple[int | str, int]] = [("all", 0), (0, 0)]
    wanted += [(n, 0) for n in range(whole + 1 - BESIDE, whole + 2 + BESIDE) if 0 < n <= len(rows)]
    over = _ffn_over(rows)
    wanted += [("all", n) for n in range(max(1, over - 1), min(len(rows), over + 2) + 1)]
    predicted = []
    for layers, ffn in dict.fromkeys(wanted):
        try:
            p = plan_of(layers, ffn)
        except HybridKernError:
            continue  # it does not fit
        if p.assignment != made.assignment and _request(p) <= NEAR * _request(made):
            predicted.append((_request(p), (layers, ffn)))
    return [placement for _, placement in sorted(predicted, key=lambda pair: pair[0])[:TRIED]]


def _request(p: Plan) -> float:
    """Predicted seconds of what the search makes least."""
    return Trial(Choice(1, 1, 1), p.prefill, p.decode).seconds


def _ffn_over(rows: Sequence[Any]) -> int:
    """About how many feed-forward networks are too many for the GPUs, two thirds of a block's weights each."""
    nbytes = [sum(row.weights.values()) for row in rows]
    over = sum(row.weights.get("cpu", 0) for row in rows)
    return round(over / max(1.0, 2 / 3 * statistics.fmean(nbytes)))
