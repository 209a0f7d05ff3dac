"""Truncation of a distribution: which candidates stay.

Candidates are two arrays, ids and float64 logits, best first. `log_total` is the logarithm of the mass against which
probabilities count, so that candidates can be a part of a distribution whose rest is known to fall away.
"""

from __future__ import annotations

import numpy as np

LN2 = float(np.log(2.0))


def logsumexp(values: np.ndarray) -> float:
    """log(sum(exp(values))) without overflow."""
    top = float(values.max())
    return top + float(np.log(np.exp(values - top).sum()))


def keep_typical(logits: np.ndarray, p: float) -> np.ndarray:
    """Locally typical sampling (Meister et al. 2022, https://arxiv.org/abs/2202.00666): indices that stay.

    Tokens whose surprise is closest to the entropy, until they have probability p together.
    """
    log_p = logits - logsumexp(logits)
    probability = np.exp(log_p)
    finite = probability > 0
    entropy = -float((probability[finite] * log_p[finite]).sum())
    order = np.argsort(np.abs(-log_p - entropy), kind="stable")
    mass = np.cumsum(probability[order])
    count = int(np.searchsorted(mass, p, side="left")) + 1
    return np.sort(order[:count])


def count_top_p(logits: np.ndarray, p: float, log_total: float) -> int | None:
    """Nucleus sampling (Holtzman et al. 2020, https://arxiv.org/abs/1904.09751): how many candidates stay.

    The fewest whose probability reaches p, at least one. None if these candidates do not reach it.
    """
    mass = np.cumsum(np.exp(logits - log_total))
    count = int(np.searchsorted(mass, p, side="left")) + 1
    return count if count <= logits.shape[0] else None


def count_min_p(logits: np.ndarray, p: float) -> int:
    """Min-p sampling (Nguyen et al. 2024, https://arxiv.org/abs/2407.01082): how many candidates stay."""
    if p <= 0:
        return logits.shape[0]
    bound = logits[0] + np.log(p)
    return max(1, int(np.searchsorted(-logits, -bound, side="right")))


def mirostat_k(logits: np.ndarray, mu: float, n_vocab: int) -> int:
    """Mirostat 1 (Basu et al. 2021, https://arxiv.org/abs/2007.14966): the k whose top-k has the surprise mu.

    Zipf's exponent s comes from the ratios of neighbouring probabilities among the best (equation 29), k from
    the expected surprise of a Zipf distribution (equation 4).
    """
    finite = logits[np.isfinite(logits)]
    if finite.shape[0] < 2:
        return 1
    ranks = np.arange(1.0, finite.shape[0])
    t = np.log((ranks + 1.0) / ranks)
    b = finite[:-1] - finite[1:]
    s = float((t * b).sum() / (t * t).sum())
    epsilon = s - 1.0
    if abs(epsilon) < 1e-6:  # the limit of the formula below
        log_k = (mu * LN2 - np.log(np.log(n_vocab))) / s if s > 0 else np.inf
    elif s < 1e-9:  # all alike, as at a temperature without end
        log_k = np.inf
    else:
        log_k = (np.log(abs(epsilon)) + mu * LN2 - np.log(abs(1.0 - float(n_vocab) ** -epsilon))) / s
    return int(np.clip(np.exp(np.minimum(log_k, 50.0)), 1.0, n_vocab))
