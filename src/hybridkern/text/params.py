"""What the user asks of the sampler, validated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real

from hybridkern.errors import ArgumentError

_SEEDS = 1 << 64
_LARGE = 1e9  # no logit comes near it, and what is computed with it overflows nowhere


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen.

    temperature        0 takes the most likely token, whatever the seed
    top_k              keep the k most likely tokens; 0 is off
    top_p              nucleus sampling, keep the most likely tokens that together have this probability; 1 is off
    min_p              keep tokens at least this likely relative to the most likely one; 0 is off
    typical_p          locally typical sampling; 1 is off
    repeat_penalty     divides the logits of recent tokens (multiplies negative ones); 1 is off
    presence_penalty   is subtracted once from the logit of each recent token; 0 is off
    frequency_penalty  is subtracted once for each time a token occurred recently; 0 is off
    repeat_last_n      how many tokens count as recent; 0 is off, -1 means all
    mirostat           1 or 2 replace top_k, typical_p, top_p and min_p with a control of the surprise; 0 is off
    mirostat_tau       the surprise in bits that mirostat aims at
    mirostat_eta       mirostat's learning rate
    logit_bias         token id -> what is added to its logit; -inf forbids the token
    seed               None takes one from the operating system
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        _real("temperature", self.temperature, 0.0)
        _whole("top_k", self.top_k, 0)
        _real("top_p", self.top_p, 0.0, 1.0)
        _real("min_p", self.min_p, 0.0, 1.0)
        _real("typical_p", self.typical_p, 0.0, 1.0)
        _real("repeat_penalty", self.repeat_penalty, 0.0, above=True)
        _real("repeat_penalty", self.repeat_penalty, 1 / _LARGE, _LARGE)
        _whole("repeat_last_n", self.repeat_last_n, -1)
        _real("presence_penalty", self.presence_penalty, -_LARGE, _LARGE)
        _real("frequency_penalty", self.frequency_penalty, -_LARGE, _LARGE)
        _whole("mirostat", self.mirostat, 0, 2)
        _real("mirostat_tau", self.mirostat_tau, 0.0, _LARGE)
        _real("mirostat_eta", self.mirostat_eta, 0.0, _LARGE)
        if self.seed is not None:
            _whole("seed", self.seed, 0, _SEEDS - 1)
        if not isinstance(self.logit_bias, Mapping):
            raise ArgumentError(f"logit_bias must map token ids to numbers, not {self.logit_bias!r}")
        for token, bias in self.logit_bias.items():
            _whole("logit_bias: token id", token, 0)
            if not (isinstance(bias, Real) and (abs(bias) <= _LARGE or bias == -math.inf)):
                raise ArgumentError(
                    f"logit_bias[{token}] is {bias!r}: it must be a number from {-_LARGE:g} to {_LARGE:g}, or -inf to "
                    "forbid the token"
                )

    def check_vocabulary(self, n_vocab: int) -> None:
        """ArgumentError where a token is named that a vocabulary of `n_vocab` tokens has not."""
        for token in self.logit_bias:
            if token >= n_vocab:
                raise ArgumentError(f"logit_bias: token id {token} is outside the vocabulary of {n_vocab} tokens")

    @property
    def greedy(self) -> bool:
        """Is the most likely token taken?"""
        return self.temperature == 0

    @property
    def penalises(self) -> bool:
        """Does the choice depend on the tokens before?"""
        strengths = (self.repeat_penalty != 1.0, self.presence_penalty != 0.0, self.frequency_penalty != 0.0)
        return self.repeat_last_n != 0 and any(strengths)


def _real(
    name: str, value: object, low: float | None = None, high: float | None = None, *, above: bool = False
) -> None:
    good = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if good and low is not None:
        good = value > low if above else value >= low  # type: ignore[operator]
    if good and high is not None:
        good = value <= high  # type: ignore[operator]
    if not good:
        if low is None:
            allowed = "a finite number"
        elif high is None:
            allowed = f"a finite number {'above' if above else 'of at least'} {low:g}"
        else:
            allowed = f"a number from {low:g} to {high:g}"
        raise ArgumentError(f"{name} is {value!r}: it must be {allowed}")


def _whole(name: str, value: object, low: int, high: int | None = None) -> None:
    good = isinstance(value, Integral) and not isinstance(value, bool) and value >= low
    if not good or (high is not None and value > high):  # type: ignore[operator]
        allowed = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise ArgumentError(f"{name} is {value!r}: it must be a whole number {allowed}")
