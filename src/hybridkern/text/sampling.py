"""From logits to the next token."""

from __future__ import annotations

import math
from collections import Counter, deque

import numpy as np

from hybridkern.errors import ArgumentError, SamplingError
from hybridkern.text.filters import LN2, count_min_p, count_top_p, keep_typical, logsumexp, mirostat_k
from hybridkern.text.logits import argmax_logsumexp, topk
from hybridkern.text.params import SamplingParams

_MIROSTAT_RANKS = 100  # from how many ranks mirostat 1 estimates Zipf's exponent
_NUCLEUS_START = 256


class Sampler:
    """Chooses the tokens of one sequence.

    The order is llama.cpp's: logit bias, penalties, top-k, typical, top-p, min-p, temperature, draw; with mirostat:
    logit bias, penalties, temperature, mirostat. Truncation therefore sees the distribution at temperature 1.

    `logprob` is the log-probability of the token under the model's own distribution, before bias, penalties,
    truncation and temperature, so that it means the same whatever the settings are.

    One uniform number of a PCG64 generator is drawn per token and inverted through the cumulative distribution: a
    seed gives the same tokens on every machine.
    """

    def __init__(self, params: SamplingParams, n_vocab: int) -> None:
        params.check_vocabulary(n_vocab)
        self.params = params
        self.n_vocab = n_vocab
        #: The seed in use, also where the parameters left it open.
        self.seed: int = int(np.random.SeedSequence().entropy) % 2**64 if params.seed is None else int(params.seed)
        self._bias = {int(token): float(bias) for token, bias in params.logit_bias.items()}
        self._penalises = params.penalises
        self.reset()

    def reset(self) -> None:
        """Start again as a fresh sampler with the same seed."""
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        self._recent: deque[int] = deque()
        self._counts: Counter[int] = Counter()
        #: Mirostat's bound on the surprise in bits, carried from token to token.
        self.mu = 2.0 * self.params.mirostat_tau

    def accept(self, token: int) -> None:
        """Add a token to the history that the penalties look at."""
        if not self._penalises:
            return
        self._recent.append(token)
        self._counts[token] += 1
        if 0 <= self.params.repeat_last_n < len(self._recent):
            oldest = self._recent.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]

    def sample(self, logits: np.ndarray, step: int) -> tuple[int, float]:
        """Choose a token from one row of logits. `step` is only for messages. The logits are left as they are."""
        if logits.shape != (self.n_vocab,):
            raise ArgumentError(f"logits have shape {logits.shape}, expected ({self.n_vocab},)")
        best, log_total = argmax_logsumexp(logits)
        if not math.isfinite(log_total):
            raise SamplingError(_fault(logits, step))
        changed = self._changed(logits)
        if changed is None and self.params.greedy:
            token = best
        elif self.params.greedy:
            ids, _ = self._candidates(logits, changed, 1, step)
            token = int(ids[0])
        elif self.params.mirostat:
            token = self._mirostat(logits, changed, step)
        else:
            token = self._draw(*self._truncated(logits, changed, log_total, step))
        return token, float(logits[token]) - log_total

    @property
    def n_candidates(self) -> int:
        """How many of the likeliest tokens `sample_among` needs; 0 where nothing less than all logits will do."""
        params = self.params
        plain = not (self._bias or self._penalises or params.mirostat or params.greedy)
        return params.top_k if plain and params.top_k < self.n_vocab else 0

    def sample_among(self, ids: np.ndarray, logits: np.ndarray, log_total: float) -> tuple[int, float]:
        """What `sample` chooses, from the likeliest tokens alone, at least `n_candidates`, best first (the lowest id
        first among equals). log_total: log(sum(exp)) over all logits."""
        k = self.params.top_k
        possible = logits[:k] > -np.inf
        values = logits[:k][possible].astype(np.float64)
        kept, values = self._cut(ids[:k][possible], values)
        token = self._draw(kept, values)
        return token, float(logits[int(np.flatnonzero(ids[:k] == token)[0])]) - log_total

    def _changed(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Ids whose logits bias or penalties change, ascending, and their new values; None if there are none."""
        counts = self._counts
        if not self._bias and not counts:
            return None
        params = self.params
        ids = np.array(sorted(self._bias.keys() | counts.keys()), dtype=np.int64)
        values = logits[ids].astype(np.float64)
        if self._bias:
            values += np.array([self._bias.get(i, 0.0) for i in ids.tolist()])
        if counts:
            # Keskar et al. 2019, https://arxiv.org/abs/1909.05858, with the sign made to matter.
            times = np.array([counts.get(i, 0) for i in ids.tolist()], dtype=np.float64)
            penalised = np.where(values <= 0, values * params.repeat_penalty, values / params.repeat_penalty)
            penalised -= times * params.frequency_penalty + params.presence_penalty
            values = np.where(times > 0, penalised, values)
        return ids, values

    def _candidates(
        self, logits: np.ndarray, changed: tuple[np.ndarray, np.ndarray] | None, k: int, step: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k best ids and their logits after bias and penalties, best first, without copying the row.

        Of the unchanged logits, the k best are among the k + len(changed) best of all.
        """
        if changed is None:
            ids = topk(logits, k)
            values = logits[ids].astype(np.float64)
        else:
            ids = topk(logits, k + changed[0].shape[0])
            ids = ids[~np.isin(ids, changed[0])]
            values = np.concatenate((logits[ids].astype(np.float64), changed[1]))
            ids = np.concatenate((ids, changed[0]))
            order = np.lexsort((ids, -values))[:k]
            ids, values = ids[order], values[order]
        possible = values > -np.inf
        if not possible.all():
            ids, values = ids[possible], values[possible]
            self._require_possible(values, step)
        return ids, values

    @staticmethod
    def _require_possible(values: np.ndarray, step: int) -> None:
        if not (values > -np.inf).any():
            raise SamplingError(f"step {step}: logit_bias forbids every token that the model allows")

    def _adjusted(self, logits: np.ndarray, changed: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
        """The whole row after bias and penalties, as float64."""
        row = logits.astype(np.float64)
        if changed is not None:
            row[changed[0]] = changed[1]
        return row

    def _truncated(
        self, logits: np.ndarray, changed: tuple[np.ndarray, np.ndarray] | None, log_total: float, step: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The candidates that top-k, typical, top-p and min-p leave."""
        params = self.params
        if 0 < params.top_k < self.n_vocab:
            ids, values = self._candidates(logits, changed, params.top_k, step)
        elif params.typical_p < 1:
            ids, values = self._candidates(logits, changed, self.n_vocab, step)
        elif params.top_p >= 1 and params.min_p <= 0:
            # Nothing is cut, so nothing needs sorting either.
            values = self._adjusted(logits, changed)
            self._require_possible(values, step)
            return np.arange(self.n_vocab), values
        else:
            return self._nucleus(logits, changed, log_total, step)
        return self._cut(ids, values)

    def _cut(self, ids: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What typical, top-p and min-p leave of candidates, best first."""
        params = self.params
        if params.typical_p < 1:
            kept = keep_typical(values, params.typical_p)
            ids, values = ids[kept], values[kept]
        count = None
        if params.top_p < 1:
            count = count_top_p(values, params.top_p, logsumexp(values))
        count = min(count or ids.shape[0], count_min_p(values, params.min_p))
        return ids[:count], values[:count]

    def _nucleus(
        self, logits: np.ndarray, changed: tuple[np.ndarray, np.ndarray] | None, log_total: float, step: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Top-p and min-p without top-k: both keep a head of the sorted row, so only a head is ever sorted."""
        params = self.params
        if changed is not None:
            adjusted = self._adjusted(logits, changed)
            self._require_possible(adjusted, step)
            log_total = logsumexp(adjusted)
        k = _NUCLEUS_START
        while True:
            ids, values = self._candidates(logits, changed, min(k, self.n_vocab), step)
            count = count_min_p(values, params.min_p)
            if params.top_p < 1:
                count = min(count, count_top_p(values, params.top_p, log_total) or count)
            if count < ids.shape[0] or k >= self.n_vocab:
                return ids[:count], values[:count]
            k *= 8

    def _draw(self, ids: np.ndarray, values: np.ndarray) -> int:
        """Apply the temperature and draw."""
        return int(ids[self._draw_index(_at_temperature(values, self.params.temperature))])

    def _draw_index(self, log_weights: np.ndarray) -> int:
        mass = np.cumsum(np.exp(log_weights - log_weights.max()))
        point = self._random.random() * mass[-1]
        return min(int(np.searchsorted(mass, point, side="right")), mass.shape[0] - 1)

    def _mirostat(self, logits: np.ndarray, changed: tuple[np.ndarray, np.ndarray] | None, step: int) -> int:
        """Mirostat 1 and 2 (Basu et al. 2021): keep the observed surprise near tau.

        As in the paper, the surprise is that under the whole distribution, not under the truncated one.
        """
        params = self.params
        row = self._adjusted(logits, changed)
        self._require_possible(row, step)
        row = _at_temperature(row, params.temperature)
        log_total = logsumexp(row)
        if params.mirostat == 1:
            k = mirostat_k(row[topk(row, _MIROSTAT_RANKS)], self.mu, self.n_vocab)
        else:
            k = max(1, int(np.count_nonzero(log_total - row <= self.mu * LN2)))
        ids = topk(row, k)
        ids = ids[row[ids] > -np.inf]
        token = int(ids[self._draw_index(row[ids])])
        surprise = (log_total - row[token]) / LN2
        self.mu -= params.mirostat_eta * (surprise - params.mirostat_tau)
        return token


def _at_temperature(values: np.ndarray, temperature: float) -> np.ndarray:
    """Logits relative to the greatest, divided by the temperature: -inf where a tiny one overflows, never NaN."""
    with np.errstate(over="ignore"):
        return (values - values.max()) / temperature


def _fault(logits: np.ndarray, step: int) -> str:
    """What is wrong with a row of logits that has no finite total."""
    nan = int(np.isnan(logits).sum())
    if nan:
        return f"step {step}: {nan} of {logits.shape[0]} logits are NaN; the model's output cannot be used"
    if np.isposinf(logits).any():
        return f"step {step}: a logit is infinite; the model's output cannot be used"
    return f"step {step}: all {logits.shape[0]} logits are -inf; no token is possible"
