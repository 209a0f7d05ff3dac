"""The quantisers, read back by gguf-py: against plain rounding, and against the best that any scale can do."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from gguf.quants import quantize as plain_quantize
from objective import IQ4, best_affine, best_symmetric, best_table, error_of, weights_of

import hybridkern as hk
from hybridkern.errors import ArgumentError, KernelError
from hybridkern.kernels.quantizing import WRITABLE

BLOCKS = tuple(name for name in WRITABLE if name not in ("F32", "F16", "BF16"))
PLAIN = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")  # what gguf-py rounds by itself
SUPERS = tuple(name for name in BLOCKS if GGML_QUANT_SIZES[GGMLQuantizationType[name]][0] == 256)
# Largest root mean square error, as a part of the values' own, of numbers with a normal distribution.
BOUNDS = {
    "Q8_0": 0.0056, "Q6_K": 0.018, "Q5_K": 0.036, "Q5_1": 0.036, "Q5_0": 0.044, "Q4_K": 0.072, "Q4_1": 0.072,
    "IQ4_NL": 0.077, "IQ4_XS": 0.077, "Q4_0": 0.086, "Q3_K": 0.152, "Q2_K": 0.29,
}  # fmt: skip


def read(raw, name):
    return dequantize(raw, GGMLQuantizationType[name]).astype(np.float64)


def samples(seed=0):
    """Rows of 512 that quantisers find easy, hard, or strange."""
    rng = np.random.default_rng(seed)
    normal = rng.normal(0, 0.02, (8, 512))
    outliers = normal.copy()
    outliers[:, ::61] *= 12
    made = {
        "normal": normal,
        "heavy tails": rng.standard_t(3, (8, 512)) * 0.01,
        "outliers": outliers,
        "one sign": np.abs(normal) + 0.03,
        "shifted": normal + 0.05,
        "unequal blocks": normal * np.repeat(10.0 ** rng.uniform(-3, 1, (8, 32)), 16, axis=1),
    }
    return {name: x.astype(np.float32) for name, x in made.items()}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_error_is_within_the_formats_bound(name):
    x = np.random.default_rng(1).normal(0, 0.02, (64, 512)).astype(np.float32)
    raw = hk.quants.quantize(x, name)
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    assert raw.shape == (64, 512 // block * size)
    assert np.sqrt(((read(raw, name) - x) ** 2).mean()) < BOUNDS[name] * 0.02
    assert np.array_equal(hk.quants.dequantize(raw, name, x.shape), read(raw, name).astype(np.float32))


@pytest.mark.parametrize("name", PLAIN)
def test_a_search_is_never_worse_than_plain_rounding(name):
    for kind, x in samples().items():
        ours = error_of(x.astype(np.float64), read(hk.quants.quantize(x, name), name))
        plain = error_of(x.astype(np.float64), read(plain_quantize(x, GGMLQuantizationType[name]), name))
        assert ours <= plain * 1.0001, kind


@pytest.mark.parametrize(
    ("name", "best"),
    [
        ("Q4_0", lambda x, w: best_symmetric(x, w, -8, 7)),
        ("Q5_0", lambda x, w: best_symmetric(x, w, -16, 15)),
        ("Q4_1", lambda x, w: best_affine(x, w, 15)),
        ("Q5_1", lambda x, w: best_affine(x, w, 31)),
        ("IQ4_NL", lambda x, w: best_table(x, w, IQ4)),
    ],
)
def test_a_search_is_near_the_best_that_any_scale_can_do(name, best):
    """Blocks of 32 with scales of their own: all scales are tried. What is stored is rounded to fp16, which costs."""
    ours, least = 0.0, 0.0
    for kind in ("normal", "heavy tails", "outliers"):
        x = samples(2)[kind].astype(np.float64)[:2, :256]
        ours += error_of(x, read(hk.quants.quantize(x, name), name))
        for row in x:
            w = weights_of(row)
            least += sum(best(row[at : at + 32], w[at : at + 32]) for at in range(0, 256, 32))
    assert least <= ours * 1.0001  # else the reference is no optimum
    assert ours <= least * 1.05


@pytest.mark.parametrize(
    ("name", "sub", "best"),
    [
        ("Q6_K", 16, lambda x, w: best_symmetric(x, w, -32, 31)),
        ("Q3_K", 16, lambda x, w: best_symmetric(x, w, -4, 3)),
        ("IQ4_XS", 32, lambda x, w: best_table(x, w, IQ4)),
        ("Q4_K", 32, lambda x, w: best_affine(x, w, 15)),
        ("Q5_K", 32, lambda x, w: best_affine(x, w, 31)),
        ("Q2_K", 16, lambda x, w: best_affine(x, w, 3)),
    ],
)
def test_sub_blocks_with_integer_scales_are_near_free_ones(name, sub, best):
    """No format can beat sub-blocks with real scales and minima of any sign; few bits for the scales cost something."""
    cost = {"Q6_K": 1.15, "Q3_K": 1.12, "IQ4_XS": 1.10, "Q4_K": 1.12, "Q5_K": 1.25, "Q2_K": 1.25}[name]
    x = np.random.default_rng(3).normal(0, 0.02, (2, 256))
    ours = error_of(x, read(hk.quants.quantize(x, name), name))
    least = 0.0
    for row in x.astype(np.float32).astype(np.float64):
        w = weights_of(row)
        least += sum(best(row[at : at + sub], w[at : at + sub]) for at in range(0, 256, sub))
    assert least <= ours <= least * cost


@pytest.mark.parametrize("name", BLOCKS)
def test_what_is_on_the_grid_of_a_format_stays_there(name):
    """Quantising what was read from a file of the format again loses a small part of what the first time lost."""
    for x in (samples(4)["normal"], samples(4)["heavy tails"]):
        once = read(hk.quants.quantize(x, name), name)
        again = read(hk.quants.quantize(once, name), name)
        assert ((again - once) ** 2).sum() <= 0.1 * ((once - x) ** 2).sum()


@pytest.mark.parametrize("name", BLOCKS)
def test_zeros_constants_and_tiny_numbers(name):
    zeros = np.zeros((1, 256), np.float32)
    assert not read(hk.quants.quantize(zeros, name), name).any()
    for value in (0.5, -0.5):
        constant = np.full((1, 256), value, np.float32)
        assert np.abs(read(hk.quants.quantize(constant, name), name) - value).max() <= 0.035
    tiny = read(hk.quants.quantize(np.full((1, 256), 1e-38, np.float32), name), name)
    assert np.abs(tiny).max() <= 1e-7
    one = zeros.copy()
    one[0, 77] = -3.0
    found = read(hk.quants.quantize(one, name), name)
    assert abs(found[0, 77] + 3) <= 0.1
    assert np.abs(np.delete(found, 77)).max() <= 0.1


@pytest.mark.parametrize("name", WRITABLE)
def test_numbers_that_cannot_be_stored_are_named(name):
    x = np.random.default_rng(5).normal(0, 1, (70, 512)).astype(np.float32)
    for bad in (np.nan, np.inf, -np.inf):
        y = x.copy()
        y[69, 300] = bad
        with pytest.raises(KernelError, match="NaN or infinity at row 69, column 300"):
            hk.quants.quantize(y, name, threads=2)
    y = x.copy()
    y[3, 300] = 1e30
    if name in ("F32", "BF16"):
        assert np.isfinite(read(hk.quants.quantize(y, name), name)).all()
    else:
        with pytest.raises(KernelError, match=rf"at row 3, column \d+.* is too large for {name}"):
            hk.quants.quantize(y, name)


@pytest.mark.parametrize("name", BLOCKS)
def test_columns_that_matter_more_are_closer(name):
    x = samples(6)["normal"]
    importance = np.ones(512, np.float32)
    importance[::7] = 50
    heavy = importance > 1
    with_it = (read(hk.quants.quantize(x, name, importance), name) - x) ** 2
    without = (read(hk.quants.quantize(x, name), name) - x) ** 2
    if name != "Q8_0":  # has no search
        assert with_it[:, heavy].mean() < 0.9 * without[:, heavy].mean()
    scaled = hk.quants.quantize(x, name, importance * np.float32(2.0**66))
    assert np.array_equal(scaled, hk.quants.quantize(x, name, importance))
    assert np.array_equal(hk.quants.quantize(x, name, np.zeros(512)), hk.quants.quantize(x, name))


@pytest.mark.parametrize("name", WRITABLE)
def test_threads_and_instruction_sets_make_no_difference(name, monkeypatch):
    x = np.concatenate(list(samples(7).values()) * 30)
    raw = hk.quants.quantize(x, name)
    assert np.array_equal(raw, hk.quants.quantize(x, name, threads=3))
    monkeypatch.setenv("HYBRIDKERN_CPU", "scalar")
    assert np.array_equal(raw, hk.quants.quantize(x, name))


@pytest.mark.parametrize("name", ["Q4_0", "Q5_1", "IQ4_NL", "Q8_0"])
def test_rows_that_are_no_multiple_of_256(name):
    x = samples(8)["normal"][:, :480]
    assert np.array_equal(
        read(hk.quants.quantize(x, name), name)[:, :256], read(hk.quants.quantize(x[:, :256], name), name)
    )
    assert np.abs(read(hk.quants.quantize(x, name), name) - x).max() < 0.02


@pytest.mark.parametrize("isa", ["scalar", None])
@pytest.mark.parametrize("name", [n for n in BLOCKS if n not in SUPERS])
def test_blocks_of_many_rows_are_searched_together(name, isa, monkeypatch):
    """And are what they are alone, each with its own columns' importance; a scale that is too large says which row."""
    if isa:
        monkeypatch.setenv("HYBRIDKERN_CPU", isa)
    rng = np.random.default_rng(10)
    for cols in (32, 96, 288, 576):
        x, importance = rng.normal(0, 0.02, (11, cols)).astype(np.float32), rng.uniform(0.1, 9, cols)
        for given in (None, importance):
            alone = [hk.quants.quantize(row, name, given) for row in x[:, None]]
            assert np.array_equal(hk.quants.quantize(x, name, given), np.concatenate(alone))
        x[7, cols - 3] = 5e8
        with pytest.raises(KernelError, match=rf"at row 7, column {(cols - 32) // 32 * 32}, or near it, is too large"):
            hk.quants.quantize(x, name)


def test_floats_are_rounded_to_nearest_even():
    x = np.random.default_rng(9).normal(0, 1, (4, 512)).astype(np.float32)
    assert hk.quants.quantize(x, "F16").tobytes() == x.astype(np.float16).tobytes()
    bf16 = hk.quants.quantize(x, "BF16")
    assert bf16.tobytes() == plain_quantize(x, GGMLQuantizationType.BF16).tobytes()


@pytest.mark.parametrize("name", SUPERS)
def test_what_does_not_fit_is_refused(name):
    x = np.zeros((2, 288), np.float32)
    with pytest.raises(KernelError, match=f"{name} takes rows of whole blocks of 256 weights, not 288"):
        hk.quants.quantize(x, name)
    with pytest.raises(KernelError, match="MXFP4 cannot be written"):
        hk.quants.quantize(x, "MXFP4")
    with pytest.raises(ArgumentError, match="256 finite numbers from 0 on"):
        hk.quants.quantize(x[:, :256], name, -np.ones(256))
    with pytest.raises(KernelError, match="no elements"):
        hk.quants.quantize(x[:0], name)
