"""The two operations on whole rows, against a plain sort in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridkern.text import logits as rows
from hybridkern.text.logits import argmax_logsumexp, topk


def sorted_ids(logits: np.ndarray) -> np.ndarray:
    return np.lexsort((np.arange(logits.shape[0]), -logits.astype(np.float64)))


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(1, 5000),
    k=st.integers(1, 300),
    levels=st.sampled_from([1, 2, 7, 1000, 10**6]),
    seed=st.integers(0, 2**32 - 1),
)
def test_topk_with_ties(n: int, k: int, levels: int, seed: int) -> None:
    logits = np.random.default_rng(seed).integers(0, levels, n).astype(np.float32)
    np.testing.assert_array_equal(topk(logits, k), sorted_ids(logits)[:k])


@pytest.mark.parametrize("n", [32_000, 49_152, 128_256, 151_936, 262_144, 262_145])
@pytest.mark.parametrize("k", [1, 40, 1000, 40_000])
def test_topk_of_real_sizes(n: int, k: int) -> None:
    rng = np.random.default_rng(n + k)
    logits = rng.standard_normal(n, dtype=np.float32)
    logits[rng.integers(0, n, n // 3)] = -np.inf
    logits[-3:] = 9.0
    np.testing.assert_array_equal(topk(logits, k), sorted_ids(logits)[:k])


@pytest.mark.parametrize("n", [7, 49_152, 262_144])
def test_kernels_and_numpy_choose_the_same(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    logits[logits > 3] = 3.0
    made = [topk(logits, k) for k in (1, 5, 40)], argmax_logsumexp(logits)
    assert made[0][2].dtype == np.int32  # a kernel's
    monkeypatch.setattr(rows, "_for_kernels", lambda row: False)
    for k, ids in zip((1, 5, 40), made[0], strict=True):
        np.testing.assert_array_equal(ids, topk(logits, k))
    best, total = argmax_logsumexp(logits)
    assert (best, pytest.approx(total, abs=2e-5)) == made[1]


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 200_000), scale=st.sampled_from([0.0, 1.0, 30.0, 1e4]), seed=st.integers(0, 2**32 - 1))
def test_logsumexp(n: int, scale: float, seed: int) -> None:
    logits = (np.random.default_rng(seed).standard_normal(n) * scale).astype(np.float32)
    best, total = argmax_logsumexp(logits)
    exact = logits.astype(np.float64)
    assert best == sorted_ids(logits)[0]
    assert total == pytest.approx(exact.max() + np.log(np.exp(exact - exact.max()).sum()), abs=2e-5)


def test_rows_that_are_no_distribution() -> None:
    row = np.zeros(1000, np.float32)
    row[777] = np.nan
    assert np.isnan(argmax_logsumexp(row)[1])
    assert argmax_logsumexp(np.full(1000, -np.inf, np.float32))[1] == -np.inf
    row[777] = np.inf
    assert argmax_logsumexp(row)[1] == np.inf
