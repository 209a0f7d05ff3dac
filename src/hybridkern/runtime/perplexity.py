"""Perplexity of a model over a text, and how far its predictions are from those of another model.

As llama.cpp's users know it: the text is cut into chunks of n_ctx tokens, each evaluated on its own, its first token
replaced by BOS where the vocabulary has one in front of texts; the tokens of a chunk's second half are scored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hybridkern.errors import ArgumentError

from .logit_base import LogitBase, LogitWriter, base_rows

if TYPE_CHECKING:
    from .model_api import Model

_LOGIT_BYTES = 64 << 20  # of the rows that are looked at in one go
Doubles = npt.NDArray[np.float64]


def cut(ids: Sequence[int], n_ctx: int, most: int | None = None) -> list[list[int]]:
    """The chunks of n_ctx tokens, `most` at most. Raises ArgumentError where the text has not even one."""
    if n_ctx < 8:
        raise ArgumentError(f"chunks of {n_ctx} tokens: at least 8 are needed")
    n = len(ids) // n_ctx if most is None else min(most, len(ids) // n_ctx)
    if n == 0:
        raise ArgumentError(
            f"the text has {len(ids)} tokens, less than one chunk of {n_ctx}: give a longer one or a smaller -c"
        )
    return [list(ids[i * n_ctx : (i + 1) * n_ctx]) for i in range(n)]


@dataclass
class Score:
    """What is known after some chunks: one entry per scored token, in order. Those of `kl` and behind it only where a
    base was given: the KL divergence of the base's prediction from the model's, whether both find the same token
    likeliest, the base's negative log-likelihood, and how much more probable the model finds the token."""

    nll: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)
    base_nll: list[float] = field(default_factory=list)
    gain: list[float] = field(default_factory=list)

    @property
    def perplexity(self) -> tuple[float, float]:
        """exp of the mean negative log-likelihood, and its standard error."""
        mean, error = mean_and_error(self.nll)
        return math.exp(mean), math.exp(mean) * error


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    v = np.asarray(values, np.float64)
    spread = float(np.mean(v * v) - np.mean(v) ** 2)
    return float(np.mean(v)), math.sqrt(max(0.0, spread) / max(1, len(v) - 1))


def log_probabilities(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """log softmax of every row; the sums in float64."""
    top = logits.max(axis=1, keepdims=True)
    made = logits - top
    made -= np.log(np.exp(made).sum(axis=1, keepdims=True, dtype=np.float64)).astype(np.float32)
    return made


def measure(
    model: Model,
    chunks: Sequence[Sequence[int]],
    *,
    base: LogitBase | None = None,
    save: LogitWriter | None = None,
    heard: Callable[[int, Score], None] | None = None,
) -> Score:
    """Score the chunks, all of one length. base: what to compare with, made from the same chunks; save: where the
    predictions go; heard: called with the number of chunks that are done.

    Raises ArgumentError for a base of another vocabulary, ContextError where a chunk does not fit the context.
    """
    if base is not None and base.n_vocab != model.n_vocab:
        raise ArgumentError(f"{base.path}: made with {base.n_vocab} tokens, but the model has {model.n_vocab}")
    score = Score()
    bos = model.vocabulary.bos_id if model.vocabulary.add_bos else None
    step = max(1, _LOGIT_BYTES // (4 * model.n_vocab))
    with model.session() as session:
        for i, chunk in enumerate(chunks):
            ids = list(chunk) if bos is None else [bos, *chunk[1:]]
            first, last = len(ids) // 2, len(ids) - 1  # positions whose next token is scored
            for start in range(first, last, step):
                end = min(start + step, last)
                logits = session.logits(ids[:end], rows=range(start, end))
                if save is not None:
                    save.add(logits)
                _add(score, log_probabilities(logits), ids[start + 1 : end + 1], base, i, start - first)
            if heard is not None:
                heard(i + 1, score)
    return score


def _add(
    score: Score, logs: npt.NDArray[np.float32], tokens: list[int], base: LogitBase | None, chunk: int, row: int
) -> None:
    at = np.arange(len(tokens)), np.asarray(tokens)
    score.nll += (-logs[at].astype(np.float64)).tolist()
    if base is None:
        return
    wanted = base_rows(base, chunk, row, len(tokens))
    p = np.exp(wanted)
    score.kl += (p * (wanted - logs)).sum(axis=1, dtype=np.float64).tolist()
    score.same += (wanted.argmax(axis=1) == logs.argmax(axis=1)).tolist()
    score.base_nll += (-wanted[at].astype(np.float64)).tolist()
    score.gain += (np.exp(logs[at].astype(np.float64)) - np.exp(wanted[at].astype(np.float64))).tolist()
