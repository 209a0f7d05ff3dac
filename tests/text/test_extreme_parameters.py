"""Sampling parameters at the edge of floating point: an argument error or a token, never NaN and never a warning."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from hybridkern.errors import ArgumentError
from hybridkern.text import Sampler, SamplingParams

N = 300


def chosen(**options):
    logits = np.linspace(-8, 8, N).astype(np.float32)
    logits[::7] = -np.inf
    sampler = Sampler(SamplingParams(seed=1, **options), N)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for token in range(40):
            sampler.accept(token)
        tokens = []
        for step in range(20):
            tokens.append(sampler.sample(logits, step)[0])
            sampler.accept(tokens[-1])
    assert np.isfinite(sampler.mu)
    return tokens, logits


@pytest.mark.parametrize("mirostat", [0, 1, 2])
@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-300])
def test_a_tiny_temperature_takes_the_likeliest(mirostat, temperature):
    tokens, logits = chosen(temperature=temperature, mirostat=mirostat)
    assert tokens == [int(logits.argmax())] * 20


@pytest.mark.parametrize("mirostat", [0, 1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1e308},
        {"presence_penalty": 1e9, "frequency_penalty": 1e9},
        {"presence_penalty": -1e9, "frequency_penalty": -1e9},
        {"repeat_penalty": 1e9},
        {"repeat_penalty": 1e-9},
        {"logit_bias": {3: 1e9, 4: -1e9}, "repeat_penalty": 1e-9},
        {"mirostat_tau": 1e9, "mirostat_eta": 1e9},
        {"mirostat_tau": 0.0, "mirostat_eta": 1e9},
    ],
)
def test_large_parameters(mirostat, options):
    tokens, logits = chosen(mirostat=mirostat, **options)
    assert all(logits[token] > -np.inf for token in tokens)


@pytest.mark.parametrize(
    "options",
    [
        {"presence_penalty": -1e308},
        {"frequency_penalty": 1e308},
        {"repeat_penalty": 1e-308},
        {"repeat_penalty": 1e308},
        {"mirostat_tau": 1e308},
        {"mirostat_eta": 1e308},
        {"logit_bias": {1: 1e308}},
    ],
)
def test_what_would_overflow_is_refused(options):
    with pytest.raises(ArgumentError, match=next(iter(options))):
        SamplingParams(**options)
