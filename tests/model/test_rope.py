"""Rotary angles of real models' settings against the published formulas with 50 digits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from fake_metadata import metadata_of
from mpmath import mp, mpf

from hybridkern.errors import ModelError
from hybridkern.kernels.interface import Angles, Batch, Recorder
from hybridkern.kernels.reference import ReferenceSet
from hybridkern.model import ModelConfig
from hybridkern.model.rope import global_angles, local_angles

POSITIONS = (0, 1, 8191, 8193, 131071)
mp.dps = 50


def config_of(arch: str, head_dim: int, base: float, context: int = 131072, **keys: Any) -> ModelConfig:
    return ModelConfig.from_metadata(
        metadata_of(
            arch,
            attention__key_length=head_dim,
            attention__value_length=head_dim,
            rope__freq_base=base,
            context_length=context,
            **{f"rope__scaling__{k}": v for k, v in keys.items()},
        )
    )


def table(angles: Angles, variant: int = 0) -> np.ndarray:
    """cos and sin as the reference set computes them: [positions][pairs][2]."""
    recorder = Recorder()
    recorder.angles(angles)
    run = ReferenceSet(recorder.ops)
    n = len(POSITIONS)
    run._batch = Batch(np.zeros(n), np.array(POSITIONS), np.zeros(n), np.zeros(0), np.full(n, variant))
    run._op_angles(angles)
    return run._angles[angles]


def check(got: np.ndarray, frequencies: list[mpf], mscale: float = 1.0) -> None:
    assert got.shape == (len(POSITIONS), len(frequencies), 2)
    for row, position in zip(got, POSITIONS, strict=True):
        for (cos, sin), frequency in zip(row, frequencies, strict=True):
            # float64 keeps the angle 131071 to 1.5e-11.
            assert abs(cos - mscale * mp.cos(position * frequency)) < 1e-10
            assert abs(sin - mscale * mp.sin(position * frequency)) < 1e-10


def plain(dims: int, base: float) -> list[mpf]:
    return [mpf(base) ** (-mpf(2 * i) / dims) for i in range(dims // 2)]


@pytest.mark.parametrize(("head_dim", "base"), [(128, 10000.0), (128, 500000.0), (64, 100000.0), (256, 1e6)])
def test_plain(head_dim: int, base: float) -> None:
    check(table(global_angles(config_of("llama", head_dim, base))), plain(head_dim, base))


def test_linear_scales_global_angles_only() -> None:
    config = config_of("gemma3", 256, 1e6, type="linear", factor=8.0)
    assert local_angles(config) is None  # no window, nothing slides
    check(table(global_angles(config)), [f / 8 for f in plain(256, 1e6)])
    metadata = metadata_of("gemma3", attention__sliding_window=512, rope__freq_base=1e6, rope__scaling__factor=8.0)
    angles = local_angles(ModelConfig.from_metadata(metadata))
    assert angles is not None
    check(table(angles), plain(64, 10000.0))


def llama3_factors() -> np.ndarray:
    """Llama 3.1's rule for 8x from 8192: divisors 1 to 8 between wavelengths of 2048 and 8192 tokens."""
    divisors = []
    for f in plain(128, 500000.0):
        turns = 8192 * f / (2 * mp.pi)
        smooth = min(mpf(1), max(mpf(0), (turns - 1) / (4 - 1)))
        divisors.append(float(1 / ((1 - smooth) / 8 + smooth)))
    return np.array(divisors, np.float32).astype(np.float64)


def test_llama3_divides_by_the_factors_of_the_file() -> None:
    divisors = llama3_factors()
    assert divisors.min() == 1 and divisors.max() == 8
    wanted = [f / mpf(d) for f, d in zip(plain(128, 500000.0), divisors, strict=True)]
    check(table(global_angles(config_of("llama", 128, 500000.0), divisors)), wanted)


@pytest.mark.parametrize(("factor", "original", "base", "dims"), [(4.0, 32768, 1e6, 128), (16.0, 4096, 1e4, 128)])
def test_yarn(factor: float, original: int, base: float, dims: int) -> None:
    config = config_of("qwen2", dims, base, type="yarn", factor=factor, original_context_length=original)
    # Section 3.2 of the paper with alpha = 1, beta = 32, on the rounded pair index, and the temperature of section 3.4.
    pair = [dims * math.log(original / (2 * math.pi * turns)) / (2 * math.log(base)) for turns in (32, 1)]
    low, high = math.floor(pair[0]), math.ceil(pair[1])
    wanted = []
    for i, f in enumerate(plain(dims, base)):
        ramp = min(mpf(1), max(mpf(0), (mpf(i) - low) / (high - low)))
        wanted.append(f * (1 - ramp) + f / mpf(factor) * ramp)
    assert wanted[0] == 1 and abs(wanted[-1] * factor - plain(dims, base)[-1]) < 1e-30
    check(table(global_angles(config)), wanted, 0.1 * math.log(factor) + 1)


def test_yarn_can_be_switched_off_and_scaled() -> None:
    off = config_of("qwen2", 128, 1e6, type="yarn", factor=4.0, yarn_ext_factor=0.0, attn_factor=1.25)
    check(table(global_angles(off)), [f / 4 for f in plain(128, 1e6)], 1.25)


def test_longrope_has_two_tables() -> None:
    config = config_of("phi3", 96, 1e4, original_context_length=4096)
    short, long = np.linspace(1, 1.5, 48), np.linspace(1, 60, 48)
    angles = global_angles(config, short=short, long=long)
    mscale = math.sqrt(1 + math.log(32) / math.log(4096))
    check(table(angles), [f / mpf(d) for f, d in zip(plain(96, 1e4), short, strict=True)], mscale)
    check(table(angles, 1), [f / mpf(d) for f, d in zip(plain(96, 1e4), long, strict=True)], mscale)
    given = config_of("phi3", 96, 1e4, original_context_length=4096, attn_factor=1.19)
    assert global_angles(given, short=short, long=long).mscale == pytest.approx(1.19)


def test_longrope_needs_both_tables() -> None:
    config = config_of("phi3", 96, 1e4, type="longrope")
    with pytest.raises(ModelError, match=r"phi3\.rope\.scaling\.type is longrope"):
        global_angles(config)
    with pytest.raises(ModelError, match="must both be there"):
        global_angles(config, short=np.ones(48))


def test_partial_rotary() -> None:
    config = ModelConfig.from_metadata(metadata_of("phi3", rope__dimension_count=48))
    check(table(global_angles(config)), plain(48, 1e4))
