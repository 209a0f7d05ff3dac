"""Products of every format with 1 to 512 columns against float64."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_device import Gpu
from cuda_formats import FORMATS, QUANTISED, as_seen, error, upload

from hybridkern.kernels.cuda import launches, tiles
from hybridkern.kernels.cuda.layout import LAYOUTS

COUNTS = [1, 2, 8, 9, 31, 32, 33, 255, 257, 512]
# One column, codes and float32 sums: only the order of additions differs. Halves: two roundings of 2^-11 a product.
EXACT, HALVES = 2e-5, 2e-3
KERNELS = [*tiles.serving("Q4_K"), *tiles.serving("F16")]  # of wgmma.cu


def shapes(type_name: str) -> list[tuple[int, int]]:
    wide = [(203, 768), (96, 2304)]
    return wide if LAYOUTS[type_name].block == 256 else [*wide, (203, 288)]


def to_half(gpu: Gpu, step: dict[str, int], x: int, n: int, cols: int) -> tuple[int, int]:
    """The f16 form and its scales; whatever is not written stays NaN."""
    stride, size = tiles.half_sizes(n, cols)
    half, scale = gpu.empty(size), gpu.empty(n * 4)
    gpu.run(launches.rows(step, n, cols, x=x, x_stride=cols, half=half, half_scale=scale, half_stride=stride))
    return half, scale


def tile_named(gpu: Gpu, name: str) -> tiles.Tile | None:
    """None: the kernel that needs no wgmma."""
    if name == "mma":
        return None
    if not gpu.has(tiles.WGMMA_KERNEL):
        pytest.skip("no code for sm_90a, or another GPU")
    return next(t for t in KERNELS if t.name == name)


@pytest.mark.parametrize("n", [n for n in COUNTS if n <= 8])
@pytest.mark.parametrize("type_name", QUANTISED)
def test_matvec(gpu: Gpu, type_name: str, n: int) -> None:
    for rows, cols in shapes(type_name):
        rng = np.random.default_rng(n)
        w = upload(gpu, type_name, rows, cols)
        x = (rng.standard_normal((n, cols)) * 10.0 ** rng.uniform(-3, 3, (n, 1))).astype(np.float32)
        step, at, out = gpu.step(n), gpu.put(x), gpu.empty(n * rows * 4)
        parts = [w.part(out, rows)]
        if n == 1:
            for precise, limit in ((False, 2e-2), (True, 2e-4)):
                gpu.cuda.memset_d8(out, 0xFF, 4 * n * rows)
                gpu.run(launches.matvec(type_name, step, parts, cols, x=at, precise=precise, processors=3))
                assert error(gpu.get(out, (n, rows)), as_seen(x, precise) @ w.weights.T) <= EXACT
                assert error(gpu.get(out, (n, rows)), x.astype(np.float64) @ w.weights.T) <= limit
            continue
        half = to_half(gpu, step, at, n, cols)
        for limit in (launches.BLOCK_MEMORY, 32_000):  # the second leaves no room for the input
            one = launches.matvec(type_name, step, parts, cols, half=half, processors=3, limit=limit)
            gpu.cuda.memset_d8(out, 0xFF, 4 * n * rows)
            gpu.run(one)
            assert error(gpu.get(out, (n, rows)), as_seen(x) @ w.weights.T) <= HALVES


@pytest.mark.parametrize("name", ["mma", *(t.name for t in KERNELS)])
@pytest.mark.parametrize("n", [n for n in COUNTS if n > 8])
@pytest.mark.parametrize("type_name", [f for f in FORMATS if f != "F32"])
def test_matmul(gpu: Gpu, type_name: str, n: int, name: str) -> None:
    tile = tile_named(gpu, name)
    if tile is not None and tile not in tiles.serving(type_name):
        pytest.skip("not compiled for this format")
    for rows, cols in shapes(type_name):
        rng = np.random.default_rng(n)
        w = upload(gpu, type_name, rows, cols)
        x = (rng.standard_normal((n, cols)) * 10.0 ** rng.uniform(-3, 3, (n, 1))).astype(np.float32)
        x[-1] *= 1e6  # would overflow a half
        step, at, out = gpu.step(n), gpu.put(x), gpu.empty(n * rows * 4)
        half = to_half(gpu, step, at, n, cols)
        gpu.run(tiles.matmul(type_name, step, [w.part(out, rows)], cols, n, half=half, tile=tile))
        assert error(gpu.get(out, (n, rows)), x.astype(np.float64) @ w.weights.T) <= HALVES


@pytest.mark.parametrize("name", ["mma", *(t.name for t in KERNELS)])
@pytest.mark.parametrize("type_name", ["Q4_K", "Q5_0", "BF16"])
def test_matmul_group(gpu: Gpu, type_name: str, name: str) -> None:
    """Matrices of different heights over one input, with bias, and added in place."""
    tile, n, cols, sizes = tile_named(gpu, name), 70, 768, (130, 33, 300, 16)
    if tile is not None and tile not in tiles.serving(type_name):
        pytest.skip("not compiled for this format")
    rng = np.random.default_rng(3)
    x = rng.standard_normal((n, cols)).astype(np.float32)
    step, at = gpu.step(n), gpu.put(x)
    parts, wants, outs = [], [], []
    for i, rows in enumerate(sizes):
        w = upload(gpu, type_name, rows, cols, i)
        bias, add = (rng.standard_normal(s).astype(np.float32) for s in (rows, (n, rows + 3)))
        out = gpu.put(add) if i % 2 else gpu.empty(n * (rows + 3) * 4)
        parts.append(w.part(out, rows + 3, gpu.put(bias), out if i % 2 else gpu.put(add), rows + 3))
        wants.append(x.astype(np.float64) @ w.weights.T + bias + add[:, :rows])
        outs.append(out)
    half = to_half(gpu, step, at, n, cols)
    gpu.run(tiles.matmul(type_name, step, parts, cols, n, half=half, tile=tile))
    for out, rows, want in zip(outs, sizes, wants, strict=True):
        assert error(gpu.get(out, (n, rows + 3))[:, :rows], want) <= HALVES


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16"])
def test_float_products(gpu: Gpu, type_name: str, n: int) -> None:
    if n > 8 and type_name != "F32":
        pytest.skip("test_matmul has it")
    rows, cols = 203, 288
    w = upload(gpu, type_name, rows, cols)
    x = np.random.default_rng(n).standard_normal((n, cols)).astype(np.float32)
    step, at, out = gpu.step(n), gpu.put(x), gpu.empty(n * rows * 4)
    gpu.run(launches.float_product(type_name, step, w.part(out, rows), cols, n, x32=at, x_stride=cols))
    assert error(gpu.get(out, (n, rows)), x.astype(np.float64) @ w.weights.T) <= EXACT


@pytest.mark.parametrize("n", [1, 5])
def test_group_with_norm_bias_and_add(gpu: Gpu, n: int) -> None:
    cols, sizes = 768, (130, 33, 65)
    rng = np.random.default_rng(7)
    x = rng.standard_normal((n, cols)).astype(np.float32)
    norm = rng.standard_normal(cols).astype(np.float32)
    step, at, norm_at = gpu.step(n), gpu.put(x), gpu.put(norm)
    parts, wants, outs = [], [], []
    seen = x.astype(np.float64)
    seen = (seen / np.sqrt(np.mean(seen**2, axis=1, keepdims=True) + 1e-5) * norm).astype(np.float32)
    for i, rows in enumerate(sizes):
        w = upload(gpu, "Q4_K", rows, cols, i)
        bias, add = (rng.standard_normal(s).astype(np.float32) for s in (rows, (n, rows + 3)))
        out = gpu.put(add) if i == 1 else gpu.empty(n * (rows + 3) * 4)  # in place
        parts.append(w.part(out, rows + 3, gpu.put(bias), out if i == 1 else gpu.put(add), rows + 3))
        wants.append(as_seen(seen) @ w.weights.T + bias + add[:, :rows])
        outs.append(out)
    if n == 1:
        gpu.run(launches.matvec("Q4_K", step, parts, cols, x=at, norm=norm_at, normalise=True, eps=1e-5))
    else:
        half, scale = gpu.empty(tiles.half_sizes(n, cols)[1]), gpu.empty(4 * n)
        given = {"norm": norm_at, "normalise": 1, "eps": 1e-5, "half": half, "half_scale": scale, "half_stride": 8}
        gpu.run(
            launches.rows(step, n, cols, x=at, x_stride=cols, **given),
            launches.matvec("Q4_K", step, parts, cols, half=(half, scale)),
        )
    for out, rows, want in zip(outs, sizes, wants, strict=True):
        assert error(gpu.get(out, (n, rows + 3))[:, :rows], want) <= 1e-3  # a code may round the other way


@pytest.mark.parametrize("pair", launches.MIXED)
def test_group_of_two_formats(gpu: Gpu, pair: tuple[str, str]) -> None:
    """q and k of one format, v of another, in one launch; blocks whose share begins anywhere."""
    cols = 1280
    x = np.random.default_rng(3).standard_normal((1, cols)).astype(np.float32)
    step, at = gpu.step(1), gpu.put(x)
    made = [
        upload(gpu, t, rows, cols, i) for i, (t, rows) in enumerate(zip((pair[0], *pair), (130, 33, 65), strict=True))
    ]
    outs = [gpu.empty(w.rows * 4) for w in made]
    parts = [w.part(out, w.rows) for w, out in zip(made, outs, strict=True)]
    for processors in (1, 4, 7, 132):
        gpu.run(launches.matvec(pair[0], step, parts, cols, other=(pair[1], 1), x=at, processors=processors))
        for w, out in zip(made, outs, strict=True):
            assert error(gpu.get(out, (1, w.rows)), as_seen(x) @ w.weights.T) <= EXACT
            gpu.cuda.memset_d8(out, 0xFF, 4 * w.rows)


@pytest.mark.parametrize("warps", [1, 3, 5, 8])
def test_any_number_of_warps_gives_the_same_bits_again(gpu: Gpu, warps: int) -> None:
    rows, cols = 203, 2304
    w = upload(gpu, "Q5_K", rows, cols)
    x = np.random.default_rng(4).standard_normal((1, cols)).astype(np.float32)
    step, at, out = gpu.step(1), gpu.put(x), gpu.empty(rows * 4)
    one = launches.matvec("Q5_K", step, [w.part(out, rows)], cols, x=at, processors=5, warps=warps)
    seen = []
    for _ in range(3):
        gpu.run(one)
        seen.append(gpu.get(out, (1, rows)))
    assert error(seen[0], as_seen(x) @ w.weights.T) <= EXACT
    assert all(np.array_equal(seen[0], y) for y in seen)


@pytest.mark.parametrize("act", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("n", "precise"), [(1, False), (1, True), (8, False)])
def test_gated_group(gpu: Gpu, n: int, precise: bool, act: str) -> None:
    rows, cols = 201, 512
    x = (3 * np.random.default_rng(1).standard_normal((n, cols))).astype(np.float32)
    gate, up = upload(gpu, "Q6_K", rows, cols, 1), upload(gpu, "Q6_K", rows, cols, 2)
    step, at, out = gpu.step(n), gpu.put(x), gpu.empty(n * rows * 4)
    parts = [gate.part(out, rows), up.part(0, 0)]
    given = {"x": at} if n == 1 else {"half": to_half(gpu, step, at, n, cols)}
    gpu.run(launches.matvec("Q6_K", step, parts, cols, glu=act, precise=precise, **given))
    g, u = as_seen(x, precise) @ gate.weights.T, as_seen(x, precise) @ up.weights.T
    a = g / (1 + np.exp(-g)) if act == "silu" else 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
    assert error(gpu.get(out, (n, rows)), a * u) <= (EXACT if n == 1 else HALVES)


def test_fewer_tokens_than_the_launch_was_made_for(gpu: Gpu) -> None:
    """A graph of a step class serves fewer tokens: rows beyond the count stay as they are."""
    rows, cols, n = 70, 512, 3
    w = upload(gpu, "Q4_0", rows, cols)
    x = np.random.default_rng(0).standard_normal((64, cols)).astype(np.float32)
    step, at = gpu.step(n), gpu.put(x)
    for made_for in (8, 64):
        out = gpu.empty(64 * rows * 4)
        part = w.part(out, rows)
        if made_for == 8:
            gpu.run(launches.matvec("Q4_0", step, [part], cols, half=to_half(gpu, step, at, 8, cols)))
        else:
            gpu.run(tiles.matmul("Q4_0", step, [part], cols, 64, half=to_half(gpu, step, at, 64, cols)))
        y = gpu.get(out, (64, rows))
        assert error(y[:n], x[:n].astype(np.float64) @ w.weights.T) <= HALVES
        assert np.isnan(y[n:]).all()
