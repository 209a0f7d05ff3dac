"""Every float operation on every instruction set here (AVX-512 through SIMDe if need be), against float64."""

from __future__ import annotations

from ctypes import byref, c_double, c_float, c_int

import gguf
import numpy as np
import pytest
from float_ops import GELU, KV, NEOX, NORM, PAGE, SILU, FloatOps, aligned, as_f32, pack_panels, ptr

ISAS = ["scalar", "avx2", "avx512"]


@pytest.fixture(scope="module", params=ISAS)
def ops(request: pytest.FixtureRequest) -> FloatOps:
    try:
        return FloatOps(request.param)
    except LookupError as why:
        pytest.skip(str(why))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def close(got: np.ndarray, want: np.ndarray, rel: float, floor: float = 0.0) -> None:
    bound = rel * np.maximum(np.abs(want), floor)
    worst = np.max(np.abs(got.astype(np.float64) - want) / np.maximum(bound, 1e-300), initial=0)
    assert worst <= 1, f"error is {worst:.3g} times the bound"


# ---- rows


@pytest.mark.usefixtures("side")
@pytest.mark.parametrize("n", [1, 15, 16, 17, 64, 576, 2048, 4544])
def test_rmsnorm(ops: FloatOps, rng: np.random.Generator, n: int) -> None:
    x, w, y = as_f32(rng.normal(size=n) * 30), as_f32(rng.normal(size=n)), aligned(n)
    norm = x.astype(np.float64) / np.sqrt(np.mean(x.astype(np.float64) ** 2) + 1e-6)
    ops.op.rmsnorm(ptr(x), ptr(w), n, 1e-6, ptr(y))
    close(y, norm * w, 1e-6)
    ops.op.rmsnorm(ptr(x), None, n, 1e-6, ptr(x))
    close(x, norm, 1e-6)


@pytest.mark.parametrize("value", [1e30, 1e-30, 0.0])
def test_rmsnorm_extremes(ops: FloatOps, value: float) -> None:
    x, y = as_f32(np.full(64, value)), aligned(64)
    ops.op.rmsnorm(ptr(x), None, 64, 1e-6, ptr(y))
    close(y, x / np.sqrt(np.float64(x[0]) ** 2 + 1e-6), 1e-6)


@pytest.mark.usefixtures("side")
@pytest.mark.parametrize("n", [1, 16, 37, 576])
def test_add_and_scale(ops: FloatOps, rng: np.random.Generator, n: int) -> None:
    a, b, y = as_f32(rng.normal(size=n)), as_f32(rng.normal(size=n)), aligned(n)
    ops.op.add(ptr(y), ptr(a), ptr(b), n)
    assert np.array_equal(y, a + b)
    ops.op.scale(ptr(y), ptr(a), 0.3, n)
    assert np.array_equal(y, a * np.float32(0.3))


def sweep(rng: np.random.Generator, reach: float) -> np.ndarray:
    tiny = np.concatenate([10.0 ** -np.arange(0, 30, 0.5), -(10.0 ** -np.arange(0, 30, 0.5)), [0.0]])
    return as_f32(np.concatenate([rng.uniform(-reach, reach, 50_000), rng.normal(size=50_000), tiny]))


def test_glu(ops: FloatOps, rng: np.random.Generator) -> None:
    x = sweep(rng, 80)
    up, y = as_f32(rng.normal(size=x.size)), aligned(x.size)
    x64, up64 = x.astype(np.float64), up.astype(np.float64)
    ops.op.glu(ptr(y), ptr(x), ptr(up), x.size, SILU)
    close(y, x64 / (1 + np.exp(-x64)) * up64, 2e-6, 1e-30)
    ops.op.glu(ptr(y), ptr(x), ptr(up), x.size, GELU)
    u = np.sqrt(2 / np.pi) * (x64 + 0.044715 * x64**3)
    with np.errstate(over="ignore"):
        want = x64 / (1 + np.exp(-2 * u)) * up64
    # Far left the error of the exponent, relative to a result below 1e-6, shows.
    close(y, want, 2e-6, 1e-6)


def test_glu_extremes(ops: FloatOps) -> None:
    x = as_f32(np.array([-np.inf, -3e38, -1e4, 1e4, 3e38, np.inf, np.nan]))
    one, y = as_f32(np.ones(x.size)), aligned(x.size)
    for act in (SILU, GELU):
        ops.op.glu(ptr(y), ptr(x), ptr(one), x.size, act)
        assert np.array_equal(y[:3], [0, 0, 0])
        assert np.array_equal(y[3:6], x[3:6])
        assert np.isnan(y[6])


def test_softcap(ops: FloatOps, rng: np.random.Generator) -> None:
    x = sweep(rng, 300)
    y = aligned(x.size)
    ops.op.softcap(ptr(y), ptr(x), 30.0, x.size)
    close(y, 30 * np.tanh(x.astype(np.float64) / 30), 2e-6)
    x = as_f32(np.array([-np.inf, np.inf, 1e30, np.nan]))
    ops.op.softcap(ptr(x), ptr(x), 30.0, x.size)
    assert np.array_equal(x[:3], [-30, 30, 30])
    assert np.isnan(x[3])


@pytest.mark.usefixtures("side")
@pytest.mark.parametrize("layout", [NORM, NEOX])
@pytest.mark.parametrize(("dim", "rot"), [(64, 64), (128, 128), (80, 80), (96, 48), (128, 20), (256, 256)])
def test_rope(ops: FloatOps, rng: np.random.Generator, layout: int, dim: int, rot: int) -> None:
    x, angle = as_f32(rng.normal(size=dim)), rng.uniform(0, 7, rot // 2)
    cs = as_f32(np.stack([np.cos(angle), np.sin(angle)], axis=1))
    pairs = (slice(0, rot, 2), slice(1, rot, 2)) if layout == NORM else (slice(0, rot // 2), slice(rot // 2, rot))
    want = x.astype(np.float64)
    a, b, c, s = want[pairs[0]].copy(), want[pairs[1]].copy(), *cs.astype(np.float64).T
    want[pairs[0]], want[pairs[1]] = a * c - b * s, b * c + a * s
    tail = x[rot:].copy()
    ops.op.rope(ptr(x), rot, ptr(cs), layout)
    close(x, want, 1e-6, 0.5)
    assert np.array_equal(x[rot:], tail)


def argmax(ops: FloatOps, x: np.ndarray) -> tuple[int, float, float, int]:
    value, lse, bad = c_float(), c_double(), c_int(5)
    at = ops.op.argmax(ptr(x), x.size, byref(value), byref(lse), byref(bad))
    return at, value.value, lse.value, bad.value


@pytest.mark.parametrize("n", [1, 15, 64, 1000, 1024, 49152, 262_144, 262_145])
def test_argmax(ops: FloatOps, rng: np.random.Generator, n: int) -> None:
    x = as_f32(rng.normal(size=n) * 5)
    at, value, lse, bad = argmax(ops, x)
    assert (at, value, bad) == (int(np.argmax(x)), float(x.max()), 0)
    assert ops.op.max(ptr(x), n) == x.max()
    x64 = x.astype(np.float64)
    assert abs(lse - (np.log(np.exp(x64 - x64.max()).sum()) + x64.max())) < 2e-6
    x[:] = np.round(x)
    assert argmax(ops, x)[0] == int(np.argmax(x))
    x[rng.integers(n)] = np.nan
    assert argmax(ops, x)[3] == 1
    x[:] = -np.inf
    assert argmax(ops, x)[3] == 1
    x[-1] = -1e30
    assert argmax(ops, x)[:2] == (n - 1, x[-1])


def topk(ops: FloatOps, x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, int]:
    ids, vals, bad = np.zeros(k, np.int32), aligned(k), c_int(5)
    n = ops.op.topk(ptr(x), x.size, k, ptr(ids), ptr(vals), byref(bad))
    return ids[:n], vals[:n], bad.value


@pytest.mark.parametrize("n", [1, 17, 1000, 32_000, 262_144, 262_145])
@pytest.mark.parametrize("k", [1, 2, 40, 1000, 3000])
@pytest.mark.parametrize("shape", ["normal", "ties", "rising", "mostly -inf"])
def test_topk(ops: FloatOps, rng: np.random.Generator, n: int, k: int, shape: str) -> None:
    x = as_f32(rng.normal(size=n))
    if shape == "ties":
        x[:] = np.round(x)
    elif shape == "rising":
        x.sort()
    elif shape == "mostly -inf":
        x[rng.permutation(n)[3:]] = -np.inf
    ids, vals, bad = topk(ops, x, k)
    want = np.argsort(-x, kind="stable")[:k]
    assert bad == 0
    assert np.array_equal(ids, want)
    assert np.array_equal(vals, x[want])
    x[n // 2] = np.nan
    assert topk(ops, x, k)[2] == 1


def quantize(ops: FloatOps, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    codes, sums = aligned(x.size, np.int8), aligned(x.size // 16, np.int16)
    scales = aligned(x.size // 32)
    ops.op.quantize[1](ptr(x), x.size, ptr(codes), ptr(scales), ptr(sums))
    return codes, scales, sums


@pytest.mark.usefixtures("side")
def test_quantize(ops: FloatOps, rng: np.random.Generator) -> None:
    x = as_f32(rng.normal(size=(64, 32)) * 10.0 ** rng.integers(-20, 20, (64, 1)))
    x[1], x[2], x[3] = 0, 1e-38, 3e4
    x[4, 5], x[5, 7], x[6, 9], x[7, :] = np.nan, np.inf, -np.inf, np.round(x[7])
    x[8, :3] = [1e30, -1e30, 1e-3]
    codes, scales, sums = quantize(ops, x.reshape(-1))
    bad = ~np.isfinite(x).all(axis=1)
    amax = np.abs(x).max(axis=1)
    zero = amax < 1e-36
    with np.errstate(all="ignore"):
        want = np.rint(x * (np.float32(127) / amax)[:, None])
        d = np.where(bad, np.float32(np.nan), np.where(zero, 0, amax / np.float32(127)))
    want[bad | zero] = 0
    assert np.array_equal(codes, want.astype(np.int8).reshape(-1))
    assert np.array_equal(scales, d.astype(np.float32), equal_nan=True)
    assert np.array_equal(sums, codes.reshape(-1, 16).sum(axis=1, dtype=np.int16))
    assert bad[4:7].all()


@pytest.mark.usefixtures("side")
def test_quantize_pair(ops: FloatOps, rng: np.random.Generator) -> None:
    """Two rows of codes: together x to half of a step of max|x| / 16256, in integers."""
    x = as_f32(rng.normal(size=(64, 32)) * 10.0 ** rng.integers(-20, 20, (64, 1)))
    x[1], x[2], x[3] = 0, 1e-35, 3e4
    x[4, 5], x[5, 7], x[6, 9] = np.nan, np.inf, -np.inf
    x[7] = np.linspace(-16256, 16256, 32).round()
    x[8] = 16256 - 64.5 + np.arange(32)  # halves between codes and between parts
    x[8, 0] = -16256
    codes, sums, scales = (
        aligned((2, x.size + 64), np.int8),
        aligned((2, x.size // 16 + 32), np.int16),
        aligned((2, 80)),
    )
    for a in (codes, sums):
        a[:] = 99
    scales[:] = 99
    ops.op.quantize_pair(
        ptr(x), x.size, ptr(codes), ptr(scales), ptr(sums), *(a.shape[1] for a in (codes, scales, sums))
    )
    assert (codes[:, x.size :] == 99).all() and (sums[:, x.size // 16 :] == 99).all() and (scales[:, 64:] == 99).all()
    codes, sums, scales = codes[:, : x.size], sums[:, : x.size // 16], scales[:, :64]
    bad, amax = ~np.isfinite(x).all(axis=1), np.abs(x).max(axis=1)
    zero = amax < 1e-34
    with np.errstate(all="ignore"):
        v = x * (np.float32(16256) / amax)[:, None]
        d = np.where(bad, np.float32(np.nan), np.where(zero, 0, amax / np.float32(16256))).astype(np.float32)
    v[bad | zero] = 0
    both = 128 * codes[0].astype(np.int64) + codes[1]
    assert np.abs(both - v.reshape(-1)).max() <= 0.5
    assert np.array_equal(both.reshape(x.shape)[7], x[7])
    assert np.abs(codes[0]).max() == 127 and np.abs(codes[1].astype(int)).max() == 64
    assert np.array_equal(scales, np.stack([d * 128, d]), equal_nan=True)
    assert np.array_equal(sums, codes.reshape(2, -1, 16).sum(axis=2, dtype=np.int16))


# ---- products


def weights(rng: np.random.Generator, kind: str, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Stored elements and their values."""
    w = rng.normal(size=shape).astype(np.float32)
    if kind == "f16":
        return w.astype(np.float16).view(np.uint16), w.astype(np.float16).astype(np.float64)
    if kind == "bf16":
        bits = (w.view(np.uint32) >> 16).astype(np.uint16)
        return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return w, w.astype(np.float64)


@pytest.mark.usefixtures("side")
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(
    ("rows", "k", "side"),
    [*((*size, "behind") for size in ((16, 1), (40, 33), (80, 576), (144, 100), (16, 2500), (48, 257))),
     (40, 33, "front"), (48, 257, "front")],
    indirect=["side"],
)  # fmt: skip
def test_matmul(ops: FloatOps, rng: np.random.Generator, kind: str, rows: int, k: int) -> None:
    stored, values = weights(rng, kind, (rows, k))
    panels = pack_panels(stored)
    for cols in (1, 2, 3, 5, 6, 7, 8, 13, 31, 33):
        x = aligned((cols, -(-k // 16) * 16))
        x[:, :k] = rng.normal(size=(cols, k))
        got = ops.matmul(kind, panels, k, x)
        assert np.array_equal(got, ops.matmul(kind, panels, k, x, gemv=True))
        x64 = x[:, :k].astype(np.float64)
        close(got[:, :rows], x64 @ values.T, 1e-5, np.sqrt(k))


@pytest.mark.usefixtures("side")
@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
def test_dequant(ops: FloatOps, kind: str) -> None:
    if kind == "f32":
        raw = np.random.default_rng(1).normal(size=1001).astype(np.float32)
        want = raw
    else:
        raw = np.arange(65536, dtype=np.uint16)[:-3]
        want = raw.view(np.float16).astype(np.float32) if kind == "f16" else (raw.astype(np.uint32) << 16).view("f4")
    got = ops.dequant(kind, raw)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got), np.signbit(want))


# ---- KV pages


def stored_kv(kv: str, x: np.ndarray) -> np.ndarray:
    """What a cache of that type holds of x, by gguf-py."""
    if kv == "f32":
        return x.astype(np.float64)
    if kv == "f16":
        return x.astype(np.float16).astype(np.float64)
    t = gguf.GGMLQuantizationType[kv.upper()]
    return gguf.quants.dequantize(gguf.quants.quantize(x, t), t).astype(np.float64)


def read_plane(kv: str, plane: np.ndarray, dim: int, by_token: bool) -> np.ndarray:
    """A plane as (tokens, dim), from its documented layout."""
    if kv in ("f16", "f32"):
        a = plane.view(np.float16 if kv == "f16" else np.float32)[: dim * PAGE].astype(np.float64)
        return a.reshape(PAGE, dim) if by_token else a.reshape(dim, PAGE).T
    width = dim if kv == "q8_0" else dim // 2
    scales = plane[width * PAGE : (width + dim // 16) * PAGE].view(np.float16).astype(np.float64)
    c = plane[: width * PAGE]
    c, d = (
        (c.reshape(PAGE, width), scales.reshape(PAGE, dim // 32))
        if by_token
        else (c.reshape(width, PAGE).T, scales.reshape(dim // 32, PAGE).T)
    )
    codes = c.view(np.int8) if kv == "q8_0" and by_token else c.astype(np.int8) if kv == "q8_0" else None
    if kv == "q4_0":
        codes = np.stack([c & 15, c >> 4], axis=2).reshape(PAGE, dim).astype(np.int8) - 8
    return codes * np.repeat(d, 32, axis=1)


def fill_page(ops: FloatOps, kv: str, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A page whose first len(k) tokens are written, over memory full of NaN."""
    planes = ops.plane("k", kv, k.shape[1]), ops.plane("v", kv, v.shape[1])
    for t in range(len(k)):
        ops.op.kv_store_k(KV[kv], ptr(planes[0]), k.shape[1], t, ptr(k[t]))
        ops.op.kv_store_v(KV[kv], ptr(planes[1]), v.shape[1], t, ptr(v[t]))
    return planes


@pytest.mark.usefixtures("side")
@pytest.mark.parametrize("kv", list(KV))
@pytest.mark.parametrize("dim", [64, 96, 128])
def test_kv_store(ops: FloatOps, rng: np.random.Generator, kv: str, dim: int) -> None:
    k, v = (as_f32(rng.normal(size=(PAGE, dim)) * 10.0 ** rng.integers(-3, 4, (PAGE, 1))) for _ in range(2))
    k[3], v[4], k[5, 1:33] = 0, 0, np.float32(0.5)
    kp, vp = fill_page(ops, kv, k, v)
    assert np.array_equal(read_plane(kv, kp, dim, by_token=False), stored_kv(kv, k))
    assert np.array_equal(read_plane(kv, vp, dim, by_token=True), stored_kv(kv, v))
    assert kp.size % 64 == 0


def softmax_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray, cap: float) -> np.ndarray:
    s = q.astype(np.float64) @ k.T
    if cap:
        s = cap * np.tanh(s / cap)
    s = np.where(seen, s, -np.inf)
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True) @ v


@pytest.mark.usefixtures("side")
@pytest.mark.parametrize("kv", list(KV))
@pytest.mark.parametrize(
    ("dims", "side"),
    [*((dims, "behind") for dims in [(64, 64), (96, 96), (128, 128), (256, 256), (192, 128), (80, 80), (72, 40)]),
     ((96, 96), "front")],
    indirect=["side"],
)  # fmt: skip
@pytest.mark.parametrize("cap", [0.0, 20.0])
def test_attention(ops: FloatOps, rng: np.random.Generator, kv: str, dims: tuple[int, int], cap: float) -> None:
    if kv in ("q8_0", "q4_0") and (dims[0] % 32 or dims[1] % 32):
        pytest.skip("quantised caches hold multiples of 32 dimensions")
    filled = 37  # tokens in the last page; the rest of its memory is NaN
    sizes = [PAGE, PAGE, filled]
    k = [as_f32(rng.normal(size=(n, dims[0]))) for n in sizes]
    v = [as_f32(rng.normal(size=(n, dims[1]))) for n in sizes]
    pages = [fill_page(ops, kv, a, b) for a, b in zip(k, v, strict=True)]
    held_k, held_v = (stored_kv(kv, np.concatenate(a)) for a in (k, v))
    total, at = sum(sizes), np.arange(sum(sizes))
    for n in (1, 2, 3, 4, 7, 8, 16, 33, 64, 130):
        q = as_f32(rng.normal(size=(n, dims[0])) * 2 / np.sqrt(dims[0]))
        for window in (0, 100, 5):
            last = total - n // 2 + np.arange(n) // 2 + 1 if n < 40 else np.minimum(total, 2 + 3 * np.arange(n))
            last = np.minimum(last, total)
            first = np.maximum(0, last - window) if window else np.zeros(n, np.int64)
            edges = [np.clip(np.array([first, last]) - PAGE * i, 0, PAGE) for i in range(3)]
            ranges = [(e[0], e[1]) for e in edges]
            m, norm, acc = ops.attend(kv, pages, dims, q, ranges, cap)
            seen = (at >= first[:, None]) & (at < last[:, None])
            want = softmax_attention(q, held_k, held_v, seen, cap)
            close(acc / norm[:, None], want, 1e-5, 1.0)  # V is of that size
            for r in {0, n // 2, n - 1}:
                one = [(lo[r : r + 1], hi[r : r + 1]) for lo, hi in ranges]
                alone = ops.attend(kv, pages, dims, q[r : r + 1], one, cap)
                for a, b in zip(alone, (m, norm, acc), strict=True):
                    assert np.array_equal(a[0], b[r])


def test_attention_unseen_rows(ops: FloatOps, rng: np.random.Generator) -> None:
    k, v = as_f32(rng.normal(size=(20, 64))), as_f32(rng.normal(size=(20, 64)))
    page = fill_page(ops, "f16", k, v)
    q = as_f32(rng.normal(size=(3, 64)))
    m, norm, acc = ops.attend("f16", [page], (64, 64), q, [(np.array([5, 0, 7]), np.array([5, 20, 2]))])
    assert np.array_equal(m[[0, 2]], [-np.inf, -np.inf])
    assert np.array_equal(norm[[0, 2]], [0, 0])
    assert not acc[[0, 2]].any()
    assert np.isfinite(acc).all()
    q[1, 3] = np.nan
    assert np.isnan(ops.attend("f16", [page], (64, 64), q, [(np.zeros(3), np.full(3, 20))])[2][1]).all()


# ---- between instruction sets


@pytest.mark.parametrize("other", ["avx2", "avx512"])
def test_sets_agree_to_the_bit(rng: np.random.Generator, other: str) -> None:
    try:
        sets = [FloatOps("scalar"), FloatOps(other)]
    except LookupError as why:
        pytest.skip(str(why))
    x, up = as_f32(rng.normal(size=4000) * 5), as_f32(rng.normal(size=4000))
    stored, _ = weights(rng, "f16", (80, 300))
    panels, cols = pack_panels(stored), as_f32(rng.normal(size=(9, 304)))
    k, v, q = (as_f32(rng.normal(size=(n, 128))) for n in (90, 90, 9))
    results = []
    for ops in sets:
        y = aligned((4, 4000))
        ops.op.rmsnorm(ptr(x), ptr(up), 4000, 1e-6, ptr(y[0]))
        ops.op.glu(ptr(y[1]), ptr(x), ptr(up), 4000, SILU)
        ops.op.glu(ptr(y[2]), ptr(x), ptr(up), 4000, GELU)
        ops.op.softcap(ptr(y[3]), ptr(x), 7.0, 4000)
        page = fill_page(ops, "q8_0", k, v)
        seen = [(np.arange(9), np.arange(9) + 80)]
        attention = ops.attend("q8_0", [page], (128, 128), q, seen, 30.0)
        results.append([y, np.array(argmax(ops, x)), ops.matmul("f16", panels, 300, cols), *attention])
    for a, b in zip(*results, strict=True):
        assert np.array_equal(a, b)
