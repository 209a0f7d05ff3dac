"""How well an engine predicts given tokens: whether a peer computes the same model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llama import UBATCH, Engine


def log_softmax_at(logits: np.ndarray, ids: Sequence[int]) -> np.ndarray:
    """Log-probability, in float64, of one id per row of `logits`."""
    out = np.empty(len(ids))
    for row, token in enumerate(ids):  # row by row: a whole chunk in float64 would take gigabytes
        x = logits[row].astype(np.float64)
        top = x.max()
        out[row] = x[token] - top - np.log(np.exp(x - top).sum())
    return out


def perplexity(engine: Engine, ids: Sequence[int], batch: int = UBATCH) -> float:
    """exp of the mean negative log-likelihood of ids[1:], each given all the ids before it."""
    total, start = 0.0, 1
    for rows in engine.logits(list(ids)[:-1], batch):
        total -= log_softmax_at(rows, ids[start : start + len(rows)]).sum()
        start += len(rows)
    return float(np.exp(total / (len(ids) - 1)))
