"""Sampling against a plain float64 reference of each distribution, and what must hold for a sequence."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridkern.errors import ArgumentError, SamplingError
from hybridkern.text import Sampler, SamplingParams
from hybridkern.text.filters import mirostat_k

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}


def row(n: int = 1000, seed: int = 0, scale: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(n) * scale).astype(np.float32)


def softmax(values: np.ndarray) -> np.ndarray:
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def reference(logits: np.ndarray, params: SamplingParams, history: list[int]) -> np.ndarray:
    """The probability of every token: full sorts, one filter after the other, nothing clever."""
    values = logits.astype(np.float64)
    for token, bias in params.logit_bias.items():
        values[token] += bias
    last = params.repeat_last_n
    recent = history if last < 0 else history[len(history) - min(last, len(history)) :]
    for token in set(recent):
        value = values[token]
        value = value / params.repeat_penalty if value > 0 else value * params.repeat_penalty
        values[token] = value - recent.count(token) * params.frequency_penalty - params.presence_penalty

    alive = [i for i in sorted(range(len(values)), key=lambda i: (-values[i], i)) if values[i] > -math.inf]
    if params.top_k:
        alive = alive[: params.top_k]
    if params.typical_p < 1:
        p = softmax(values[alive])
        entropy = -sum(x * math.log(x) for x in p if x > 0)
        distance = [abs(-math.log(x) - entropy) if x > 0 else math.inf for x in p]
        kept, mass = [], 0.0
        for i in sorted(range(len(p)), key=lambda i: distance[i]):
            kept.append(alive[i])
            mass += p[i]
            if mass >= params.typical_p:
                break
        alive = sorted(kept, key=lambda i: (-values[i], i))
    if params.top_p < 1:
        mass, count = 0.0, 0
        for x in softmax(values[alive]):
            mass, count = mass + x, count + 1
            if mass >= params.top_p:
                break
        alive = alive[:count]
    best = values[alive[0]]
    alive = [i for i in alive if params.min_p == 0 or values[i] >= best + math.log(params.min_p)]
    out = np.zeros(len(values))
    out[alive] = softmax(values[alive] / params.temperature)
    return out


class Grid:
    """Stands in for the generator: equidistant numbers, so that frequencies are probabilities."""

    def __init__(self, n: int) -> None:
        self.values = iter((np.arange(n) + 0.5) / n)

    def random(self) -> float:
        return float(next(self.values))


def frequencies(logits: np.ndarray, params: SamplingParams, history: list[int], n: int = 500) -> np.ndarray:
    sampler = Sampler(params, logits.shape[0])
    for token in history:
        sampler.accept(token)
    sampler._random = Grid(n)  # type: ignore[assignment]
    out = np.zeros(logits.shape[0])
    for step in range(n):
        out[sampler.sample(logits, step)[0]] += 1 / n
    return out


@pytest.mark.parametrize(
    "settings_",
    [
        {},
        OFF,
        {**OFF, "temperature": 0.5},
        {**OFF, "top_k": 7},
        {**OFF, "top_p": 0.7},
        {**OFF, "min_p": 0.1},
        {**OFF, "typical_p": 0.6},
        {**OFF, "top_p": 0.9, "min_p": 0.02, "temperature": 2.0},
        {**OFF, "top_k": 50, "typical_p": 0.9, "top_p": 0.9, "min_p": 0.05},
        {"repeat_penalty": 1.3},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        {**OFF, "top_p": 0.8, "repeat_penalty": 1.2, "repeat_last_n": -1},
        {"repeat_penalty": 1.3, "repeat_last_n": 3},
        {"repeat_penalty": 1.3, "repeat_last_n": 0},
        {"logit_bias": {3: 8.0, 11: -math.inf, 500: -3.0}},
        {**OFF, "top_p": 0.99, "temperature": 1.5, "logit_bias": {3: 8.0}},
    ],
)
@pytest.mark.parametrize("scale", [0.01, 1.0, 4.0])
def test_distribution(settings_: dict, scale: float) -> None:
    logits = row(scale=scale)
    history = np.argsort(-logits)[[0, 0, 1, 2, 30, 900, 0, 5, 5]].tolist()
    params = SamplingParams(**settings_)
    n = 500
    got, expected = frequencies(logits, params, history, n), reference(logits, params, history)
    assert not got[expected == 0].any(), "a token outside the support was drawn"
    np.testing.assert_allclose(got, expected, atol=1.01 / n)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 400),
    top_k=st.integers(0, 50),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    typical_p=st.floats(0.05, 1),
    temperature=st.floats(0.1, 3),
    repeat_penalty=st.floats(0.5, 2),
)
def test_any_settings(seed: int, n: int, **keys: float) -> None:
    logits = row(n, seed)
    params = SamplingParams(**keys)  # type: ignore[arg-type]
    history = [0, n - 1, 0]
    got, expected = frequencies(logits, params, history, 60), reference(logits, params, history)
    # Where a sum lands within rounding of a threshold, one token more or less may stay.
    assert np.abs(got - expected).max() < 1.01 / 60 + 0.02 or np.abs(got - expected).sum() < 0.1


def test_draws_follow_the_distribution() -> None:
    """Pearson's chi-square with the real generator: 99.9 % quantile, fixed seed."""
    logits = row(30, scale=1.0)
    sampler = Sampler(SamplingParams(seed=7, **OFF), 30)
    n = 6000
    counts = np.bincount([sampler.sample(logits, i)[0] for i in range(n)], minlength=30)
    expected = softmax(logits.astype(np.float64)) * n
    assert ((counts - expected) ** 2 / expected).sum() < 58.3  # 29 degrees of freedom


def test_a_seed_gives_the_same_tokens_everywhere() -> None:
    logits = row()
    sampler = Sampler(SamplingParams(seed=42), 1000)
    first = [sampler.sample(logits, i)[0] for i in range(20)]
    sampler.reset()
    assert [sampler.sample(logits, i)[0] for i in range(20)] == first
    again = Sampler(SamplingParams(seed=sampler.seed), 1000)
    assert [again.sample(logits, i)[0] for i in range(20)] == first
    # The first uniform numbers of PCG64(42), as NumPy documents its stream to stay.
    uniform = np.random.Generator(np.random.PCG64(42)).random(2)
    np.testing.assert_allclose(uniform, [0.7739560485559633, 0.4388784397520523])
    other = Sampler(SamplingParams(seed=43), 1000)
    assert [other.sample(logits, i)[0] for i in range(20)] != first
    assert Sampler(SamplingParams(), 10).seed != Sampler(SamplingParams(), 10).seed


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_temperature_zero_is_argmax(seed: int) -> None:
    logits = row()
    sampler = Sampler(SamplingParams(temperature=0, seed=seed), 1000)
    token, logprob = sampler.sample(logits, 0)
    assert token == int(np.argmax(logits))
    assert logprob == pytest.approx(np.log(softmax(logits.astype(np.float64))[token]), abs=1e-5)
    assert Sampler(SamplingParams(temperature=0, mirostat=2), 1000).sample(logits, 0)[0] == token


def test_greedy_with_penalties_and_bias() -> None:
    logits = row()
    order = np.argsort(-logits)
    sampler = Sampler(SamplingParams(temperature=0, presence_penalty=100.0, repeat_last_n=2), 1000)
    tokens = []
    for step in range(6):
        tokens.append(sampler.sample(logits, step)[0])
        sampler.accept(tokens[-1])
    assert tokens == [order[0], order[1], order[2]] * 2
    biased = Sampler(SamplingParams(temperature=0, logit_bias={17: 1000.0}), 1000)
    assert biased.sample(logits, 0)[0] == 17


def test_equal_logits_give_the_lowest_id() -> None:
    logits = np.zeros(5000, np.float32)
    assert Sampler(SamplingParams(temperature=0), 5000).sample(logits, 0)[0] == 0
    got = frequencies(logits, SamplingParams(**{**OFF, "top_k": 3}), [])
    assert np.flatnonzero(got).tolist() == [0, 1, 2]


def test_logprob_is_that_of_the_model() -> None:
    logits = row()
    expected = np.log(softmax(logits.astype(np.float64)))
    sampler = Sampler(SamplingParams(seed=1, temperature=2.0, top_k=5, logit_bias={9: 50.0}), 1000)
    token, logprob = sampler.sample(logits, 0)
    assert token == 9
    assert logprob == pytest.approx(expected[9], abs=1e-5)


def test_the_logits_are_left_as_they_are() -> None:
    logits = row()
    logits.flags.writeable = False
    for keys in ({}, OFF, {"mirostat": 1}, {"mirostat": 2}, {"logit_bias": {1: 2.0}}, {"typical_p": 0.5}):
        Sampler(SamplingParams(seed=1, **keys), 1000).sample(logits, 0)


@pytest.mark.parametrize("keys", [{}, {"temperature": 0}, {"mirostat": 1}, {"mirostat": 2}, OFF])
def test_logits_that_are_no_distribution(keys: dict) -> None:
    sampler = Sampler(SamplingParams(**keys), 1000)
    for value, message in ((np.nan, "1000 of 1000 logits are NaN"), (-np.inf, "all 1000 logits are -inf")):
        with pytest.raises(SamplingError, match=f"step 5: {message}"):
            sampler.sample(np.full(1000, value, np.float32), 5)
    one_nan, one_inf = row(), row()
    one_nan[77], one_inf[77] = np.nan, np.inf
    with pytest.raises(SamplingError, match="step 6: 1 of 1000 logits are NaN"):
        sampler.sample(one_nan, 6)
    with pytest.raises(SamplingError, match="step 7: a logit is infinite"):
        sampler.sample(one_inf, 7)
    only_one = np.full(1000, -np.inf, np.float32)
    only_one[5] = 1.0
    assert sampler.sample(only_one, 8) == (5, pytest.approx(0.0))


@pytest.mark.parametrize("keys", [{}, {"temperature": 0}, {"mirostat": 1}, {"mirostat": 2}, OFF])
def test_everything_forbidden(keys: dict) -> None:
    params = SamplingParams(logit_bias=dict.fromkeys(range(10), -math.inf), **keys)
    with pytest.raises(SamplingError, match="step 2: logit_bias forbids"):
        Sampler(params, 10).sample(np.zeros(10, np.float32), 2)


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_keeps_its_state_and_reaches_its_target(version: int) -> None:
    n, tau = 5000, 3.0
    ranks = np.arange(1, n + 1)
    logits = (-1.1 * np.log(ranks)).astype(np.float32)  # Zipf's law, entropy far above the target
    params = SamplingParams(mirostat=version, mirostat_tau=tau, temperature=1.0, seed=3)
    sampler = Sampler(params, n)
    assert sampler.mu == 2 * tau
    surprise = []
    for step in range(600):
        before = sampler.mu
        _, logprob = sampler.sample(logits, step)
        surprise.append(-logprob / math.log(2))
        assert sampler.mu == pytest.approx(before - 0.1 * (surprise[-1] - tau), abs=1e-4)
    assert np.mean(surprise[100:]) == pytest.approx(tau, abs=0.25)
    sampler.reset()
    assert sampler.mu == 2 * tau


def test_mirostat_2_cuts_by_surprise() -> None:
    logits = row(200, scale=2.0)
    bits = -np.log2(softmax(logits.astype(np.float64)))
    drawn = set()
    for seed in range(300):
        sampler = Sampler(SamplingParams(mirostat=2, mirostat_tau=3.0, temperature=1.0, seed=seed), 200)
        drawn.add(sampler.sample(logits, 0)[0])
    assert max(bits[list(drawn)]) <= 6.0
    assert len(drawn) > 10


def test_mirostat_1_k_solves_its_equation() -> None:
    """Equation 4 of the paper: the surprise of the k-th rank under Zipf's law with exponent s."""
    n = 50_000
    for s in (0.8, 1.2, 2.0):
        logits = -s * np.log(np.arange(1, 101))
        for mu in (2.0, 5.0, 8.0):
            e = s - 1
            k = ((e * 2**mu) / (1 - float(n) ** -e)) ** (1 / s)
            assert mirostat_k(logits, mu, n) == int(np.clip(k, 1, n))
    assert mirostat_k(np.zeros(100), 5.0, n) == n
    assert mirostat_k(np.array([1.0]), 5.0, n) == 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1: it must be a finite number of at least 0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1: it must be a whole number of at least 0"),
        ({"top_k": 1.5}, "top_k is 1.5"),
        ({"top_p": 1.1}, "top_p is 1.1: it must be a number from 0 to 1"),
        ({"min_p": -0.5}, "min_p is -0.5"),
        ({"typical_p": 2}, "typical_p is 2"),
        ({"repeat_penalty": 0}, "repeat_penalty is 0: it must be a finite number above 0"),
        ({"repeat_last_n": -2}, "repeat_last_n is -2: it must be a whole number of at least -1"),
        ({"presence_penalty": math.inf}, "presence_penalty is inf"),
        ({"frequency_penalty": "x"}, "frequency_penalty is 'x'"),
        ({"mirostat": 3}, "mirostat is 3: it must be a whole number from 0 to 2"),
        ({"mirostat_tau": -1}, "mirostat_tau is -1"),
        ({"mirostat_eta": -1}, "mirostat_eta is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"logit_bias": {-1: 0.0}}, "token id is -1"),
        ({"logit_bias": {1: math.nan}}, r"logit_bias\[1\] is nan"),
        ({"logit_bias": [1]}, "must map token ids"),
    ],
)
def test_bad_parameters(keys: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        SamplingParams(**keys)


def test_shapes_and_ids_are_checked() -> None:
    with pytest.raises(ArgumentError, match="token id 10 is outside the vocabulary of 10"):
        Sampler(SamplingParams(logit_bias={10: 1.0}), 10)
    with pytest.raises(ArgumentError, match=r"shape \(9,\), expected \(10,\)"):
        Sampler(SamplingParams(), 10).sample(np.zeros(9, np.float32), 0)
