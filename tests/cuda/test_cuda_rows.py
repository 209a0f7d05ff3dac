"""Embedding, norms, heads and the cache against float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from cuda_device import Gpu
from cuda_formats import FORMATS, error, upload

from hybridkern.kernels.cuda import launches, tiles


def in_order(chunks: npt.NDArray[np.float16]) -> npt.NDArray[np.float64]:
    """Rows of [chunks of 64 columns][tokens][64] as csrc/cuda/hk_rows.cuh lays them out."""
    c, n = np.arange(64), chunks.shape[1]
    t = np.arange(n)[:, None]
    place = 32 * (c // 32) + 16 * (c // 4 % 2) + 8 * (c // 2 % 2) + 2 * (c // 8 % 4) + c % 2
    place = 8 * (place // 8 ^ t % 8) + place % 8
    return np.take_along_axis(chunks, place[None], 2).transpose(1, 0, 2).reshape(n, -1).astype(np.float64)


@pytest.mark.parametrize("type_name", FORMATS)
def test_embed(gpu: Gpu, type_name: str) -> None:
    rows, cols, n = 50, 512, 33
    w = upload(gpu, type_name, rows, cols)
    tokens = np.random.default_rng(0).integers(0, rows, n)
    out = gpu.empty(n * (cols + 4) * 4)
    gpu.run(launches.embed(type_name, gpu.step(n, tokens=tokens), n, w.at, rows, cols, out, cols + 4, 2.0))
    assert error(gpu.get(out, (n, cols + 4))[:, :cols], 2 * w.weights[tokens]) <= 1e-6


@pytest.mark.parametrize("mode", ["copy", "silu", "gelu_tanh", "add", "scale", "softcap", "select"])
@pytest.mark.parametrize("normalise", [False, True])
def test_rows_and_elements(gpu: Gpu, mode: str, normalise: bool) -> None:
    n, width = 9, 608
    rng = np.random.default_rng(1)
    x, y = (3 * rng.standard_normal((2, 20, width))).astype(np.float32)
    norm, add = rng.standard_normal(width).astype(np.float32), rng.standard_normal((n, width)).astype(np.float32)
    chosen = rng.permutation(20)[:n]
    step = gpu.step(20, n, outputs=chosen)
    x64, y64 = x.astype(np.float64), y.astype(np.float64)
    want = {
        "copy": x64,
        "silu": x64 / (1 + np.exp(-x64)) * y64,
        "gelu_tanh": 0.5 * x64 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x64 + 0.044715 * x64**3))) * y64,
        "add": x64 + y64,
        "scale": 2.5 * x64,
        "softcap": 2.5 * np.tanh(x64 / 2.5),
        "select": x64[chosen],
    }[mode][:n]
    fields = {
        "x": gpu.put(x),
        "y": gpu.put(y),
        "x_stride": width,
        "y_stride": width,
        "number": 2.5,
        "rows_are_outputs": 1,
    }
    stride, size = tiles.half_sizes(n, width)
    out, half, scale = gpu.empty(n * (width + 4) * 4), gpu.empty(size), gpu.empty(4 * n)
    forms = {"half": half, "half_scale": scale, "half_stride": stride}
    if normalise:
        want = want / np.sqrt(np.mean(want**2, axis=1, keepdims=True) + 1e-6) * norm
        fields |= {"norm": gpu.put(norm), "normalise": 1, "eps": 1e-6}
    gpu.run(launches.rows(step, n, width, mode, out=out, out_stride=width + 4, **forms, **fields))
    assert error(gpu.get(out, (n, width + 4))[:, :width], want) <= 1e-5
    halves = in_order(gpu.get(half, (size // stride // 128, stride, 64), np.float16)[:, :n])
    assert not halves[:, width:].any()  # up to a whole step of 256 columns
    assert error(halves[:, :width] * gpu.get(scale, (n, 1)), want) <= 2e-3
    if normalise:
        given = {"add": gpu.put(add), "add_stride": width}
        gpu.run(launches.rows(step, n, width, mode, out=out, out_stride=width + 4, **given, **fields))
        assert error(gpu.get(out, (n, width + 4))[:, :width], want + add) <= 1e-5
    else:
        gpu.run(launches.elements(step, n, width - 3, mode, out=out, out_stride=width + 4, **fields))
        assert error(gpu.get(out, (n, width + 4))[:, : width - 3], want[:, :-3]) <= 1e-5


def test_angles_far_out(gpu: Gpu) -> None:
    half, positions, variants = 64, np.array([0, 1, 131071, 1000000, 5]), np.array([0, 0, 0, 0, 1])
    freq, long = 1e6 ** (-np.arange(half) / half), 1e4 ** (-np.arange(half) / half)
    step, out = gpu.step(5, positions=positions, variants=variants), gpu.empty(5 * half * 8)
    gpu.run(
        launches.angles(
            step, 5, half, inv_freq=gpu.put(freq), inv_freq_long=gpu.put(long), out=out, mscale=1.5, mscale_long=0.5
        )
    )
    theta = positions[:, None] * np.where(variants[:, None] == 1, long, freq)
    want = np.stack([np.cos(theta), np.sin(theta)], -1) * np.where(variants == 1, 0.5, 1.5)[:, None, None]
    assert np.abs(gpu.get(out, (5, half, 2)) - want).max() <= 2e-7


@pytest.mark.parametrize("neox", [0, 1])
@pytest.mark.parametrize("dim", [16, 64, 80, 128, 256])
def test_heads(gpu: Gpu, dim: int, neox: int) -> None:
    n, n_heads, half = 5, 3, dim // 4
    rng = np.random.default_rng(dim)
    x, norm = rng.standard_normal((n, n_heads, dim)).astype(np.float32), rng.standard_normal(dim).astype(np.float32)
    theta = rng.uniform(0, 6, (n, half))
    cs = np.stack([np.cos(theta), np.sin(theta)], -1)
    at = gpu.put(x)
    stream = {
        "x": at, "norm": gpu.put(norm), "angles": gpu.put(cs, np.float32), "stride": n_heads * dim, "n_heads": n_heads,
        "dim": dim, "half": half, "neox": neox, "eps": 1e-6,
    }  # fmt: skip
    gpu.run(launches.heads(gpu.step(n), n, {}, [stream]))
    want = x / np.sqrt(np.mean(x.astype(np.float64) ** 2, -1, keepdims=True) + 1e-6) * norm
    first, second = (slice(0, half), slice(half, 2 * half)) if neox else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    a, b, c, s = want[..., first].copy(), want[..., second].copy(), cs[:, None, :, 0], cs[:, None, :, 1]
    want[..., first], want[..., second] = a * c - b * s, a * s + b * c
    assert error(gpu.get(at, (n, n_heads, dim)), want) <= 1e-5
