"""Every quantised format on every instruction set, against integers and against the bits of the documented steps."""

from __future__ import annotations

import ctypes
from pathlib import Path

import gguf
import numpy as np
import pytest
import quant_reference as ref
from quant_lib import CFLAGS, QUANTS, ROOT, Activations, Format, Library, exact_isas

EMULATED = [isa for isa in exact_isas() if isa not in ("scalar", "avx2")]
COLUMNS = [1, 2, 3, 4, 5, 7, 8, 12, 13, 31, 32, 33, 45, 100]

BLOCKS = [*((n, "behind") for n in (1, 2, 3, 5, 8, 17, 18)), (5, "front")]  # of a row; the guard's side


@pytest.fixture(params=[*exact_isas(), *(f"{isa}-emulated" for isa in EMULATED)])
def kernels(request: pytest.FixtureRequest, native: Library) -> tuple[Library, str]:
    isa, _, emulate = request.param.partition("-")
    if not emulate:
        if isa not in native.sets:
            pytest.skip(f"this CPU has no {isa}")
        return native, isa
    if isa in native.sets:
        pytest.skip(f"this CPU has {isa} itself")
    library = request.getfixturevalue("emulated")
    if library is None:
        pytest.skip("emulation needs AVX2")
    return library, isa


@pytest.fixture(params=QUANTS)
def fmt(request: pytest.FixtureRequest) -> Format:
    return QUANTS[request.param]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    both_nan = np.isnan(a) & np.isnan(b)
    return bool(((a.view(np.uint32) == b.view(np.uint32)) | both_nan | ((a == 0) & (b == 0))).all())


def random_act(rng: np.random.Generator, f: Format, n: int, blocks: int) -> Activations:
    codes = rng.integers(-127, 128, (n, blocks * f.block), dtype=np.int8)
    return Activations.of(codes, rng.uniform(0.001, 0.02, (n, blocks * f.block // 32)).astype(np.float32))


def check(got: np.ndarray, w: ref.Blocks, act: Activations) -> None:
    want, size = ref.product64(w, act.codes, act.scales)
    assert (abs(got - want) <= 1e-6 * size).all()
    assert same_bits(got, ref.product(w, act.codes, act.scales))


def test_reference_decodes_like_gguf(fmt: Format) -> None:
    raw = ref.random_raw(fmt.lower, np.random.default_rng(1), 5, 3, fmt.bytes)
    w = ref.decode(fmt.lower, raw, fmt.bytes)
    scale = np.repeat(w.scale * w.d[..., None].astype(np.float64), fmt.block // w.scale.shape[-1], axis=-1)
    value = scale * w.values
    if w.mins is not None:
        value -= np.repeat(w.mins * w.m[..., None].astype(np.float64), fmt.block // w.mins.shape[-1], axis=-1)
    elif w.m is not None:
        value += w.m[..., None]
    want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(fmt.gguf_id))
    assert np.allclose(value.reshape(5, -1), want, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("side")
def test_dequantise_bits(kernels: tuple[Library, str], fmt: Format) -> None:
    lib, isa = kernels
    rng = np.random.default_rng(2)
    for blocks in (1, 3, 18):
        raw = ref.random_raw(fmt.lower, rng, 4, blocks, fmt.bytes)
        want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(fmt.gguf_id))
        assert same_bits(lib.dequant(isa, fmt, raw), want.ravel())
    raw = rng.integers(0, 256, (4, 64 * fmt.bytes), dtype=np.uint8)  # denormal, infinite and NaN scales too
    with np.errstate(all="ignore"):
        want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(fmt.gguf_id))
    assert same_bits(lib.dequant(isa, fmt, raw), want.ravel())


def test_own_kernels(kernels: tuple[Library, str], fmt: Format) -> None:
    lib, isa = kernels
    assert lib.origin(isa, fmt, 1) == isa
    if isa != "amx":  # has products with many columns only
        assert lib.origin(isa, fmt, 0) == isa


@pytest.mark.usefixtures("side")
@pytest.mark.parametrize(("blocks", "side"), BLOCKS, indirect=["side"])
def test_raw_rows(native: Library, fmt: Format, blocks: int) -> None:
    """The product with raw rows: against integers, and against the bits of the documented steps."""
    rng = np.random.default_rng(blocks)
    act = random_act(rng, fmt, 3, blocks)
    isas = [isa for isa in native.sets if native.dll.hkt_kernel(native.sets[isa], fmt.index, 3)]
    assert isas == [isa for isa in native.sets if isa == "avx2"]
    for rows in (1, 7, 8, 9, 16, 17, 41):
        raw = ref.random_raw(fmt.lower, rng, rows, blocks, fmt.bytes)
        end = np.zeros(rows * (raw.shape[1] + 7), np.uint8)  # rows with a stride
        wide = end.reshape(rows, -1)[:, : raw.shape[1]]
        wide[:] = raw
        w = ref.decode(fmt.lower, raw, fmt.bytes)
        for isa in isas:
            got = np.stack([native.gemv_raw(isa, fmt, wide, blocks * fmt.block, act, i) for i in range(3)])
            check(got, w, act)


@pytest.mark.usefixtures("side")
@pytest.mark.parametrize(("blocks", "side"), BLOCKS, indirect=["side"])
def test_gemv_and_gemm(kernels: tuple[Library, str], fmt: Format, blocks: int) -> None:
    lib, isa = kernels
    rng = np.random.default_rng(blocks)
    act = random_act(rng, fmt, max(COLUMNS), blocks)
    cols = blocks * fmt.block
    for rows in (1, 15, 16, 17, 48, 80) if blocks in (1, 3, 18) else (48,):
        raw = ref.random_raw(fmt.lower, rng, rows, blocks, fmt.bytes)
        packed = lib.pack(fmt, raw, cols)
        gemm = {n: lib.gemm(isa, fmt, packed, cols, act, n) for n in (COLUMNS if rows in (16, 48) else (2, 33))}
        longest = gemm[max(gemm)]
        check(
            longest[:, :rows],
            ref.decode(fmt.lower, raw, fmt.bytes),
            Activations.of(act.codes[: len(longest)], act.scales[: len(longest)]),
        )
        for n, out in gemm.items():
            assert same_bits(out, longest[:n]), f"{n} columns differ from {len(longest)}"
        for column in range(min(5, len(longest))):
            assert same_bits(lib.gemv(isa, fmt, packed, cols, act, column), longest[column])


def test_many_columns(kernels: tuple[Library, str], fmt: Format) -> None:
    """Past every internal column block."""
    lib, isa = kernels
    rng = np.random.default_rng(7)
    act = random_act(rng, fmt, 515, 2)
    raw = ref.random_raw(fmt.lower, rng, 144, 2, fmt.bytes)
    packed = lib.pack(fmt, raw, 2 * fmt.block)
    check(lib.gemm(isa, fmt, packed, 2 * fmt.block, act, 515)[:, :144], ref.decode(fmt.lower, raw, fmt.bytes), act)


def extreme_raw(f: Format, rng: np.random.Generator) -> np.ndarray:
    """One block a row, d = 1: bytes of 0, 0xff, 0x80, 0x7f, and mixtures, which hit every extreme code and scale."""
    fills = [0x00, 0xFF, 0x80, 0x7F, 0x0F, 0xF0, 0x3F, 0xC0]
    rows = [np.full(f.bytes, x, np.uint8) for x in fills]
    for x in fills:
        for y in fills:
            rows.append(
                np.where(np.arange(f.bytes) < {"q6_k": 192, "q3_k": 96, "q2_k": 16}.get(f.lower, 16), x, y).astype(
                    np.uint8
                )
            )
    rows += [rng.choice(np.array(fills, np.uint8), f.bytes) for _ in range(40)]
    raw = np.stack(rows)
    unit = ref.random_raw(f.lower, rng, 1, 1, f.bytes, unit=True)[0]
    keep = (
        [0]
        if f.lower == "mxfp4"
        else [
            a + i
            for a in [ref.D_AT.get(f.lower, 0)] + ([ref.M_AT[f.lower]] if f.lower in ref.M_AT else [])
            for i in (0, 1)
        ]
    )
    raw[:, keep] = unit[keep]
    return raw


def test_extremes_are_exact(kernels: tuple[Library, str], fmt: Format) -> None:
    lib, isa = kernels
    rng = np.random.default_rng(3)
    raw = extreme_raw(fmt, rng)
    k = fmt.block
    alternate = np.where(np.arange(k) % 2, 127, -127)
    pairs = np.where(np.arange(k) % 4 < 2, 127, -127)
    codes = np.stack(
        [np.full(k, 127), np.full(k, -127), alternate, -alternate, pairs, np.zeros(k), *rng.choice([-127, 127], (7, k))]
    )
    act = Activations.of(codes.astype(np.int8), np.ones((len(codes), k // 32), np.float32))
    w = ref.decode(fmt.lower, raw, fmt.bytes)
    packed = lib.pack(fmt, raw, k)
    want = ref.product(w, act.codes, act.scales)
    got = lib.gemm(isa, fmt, packed, k, act, len(codes))
    assert np.array_equal(got[:, : len(raw)], want)
    for n in range(len(codes)):
        assert same_bits(lib.gemv(isa, fmt, packed, k, act, n), got[n])
        if isa == "avx2":
            assert np.array_equal(lib.gemv_raw(isa, fmt, raw, k, act, n), want[n])


def test_odd_scales(kernels: tuple[Library, str], fmt: Format) -> None:
    """Denormal fp16 weights' scales, zero scales, activations' scales of 1e30 and 1e-38, NaN in one block."""
    lib, isa = kernels
    rng = np.random.default_rng(4)
    raw = rng.integers(0, 256, (64, 3 * fmt.bytes), dtype=np.uint8).reshape(64, 3, fmt.bytes)
    for at in (
        []
        if fmt.lower == "mxfp4"
        else [ref.D_AT.get(fmt.lower, 0)] + ([ref.M_AT[fmt.lower]] if fmt.lower in ref.M_AT else [])
    ):
        raw[..., at] = rng.integers(0, 256, (64, 3))
        raw[..., at + 1] = rng.choice(np.array([0, 0x80, 1, 2, 0x7B, 0xFB], np.uint8), (64, 3))
    raw = raw.reshape(64, -1)
    scales = np.array([[1e30, 1, 1e-30], [1e-38, 1e-38, 1e-38], [1, np.nan, 1], [0, 0, 0], [1e-42, 1, 1]], np.float32)
    scales = np.repeat(scales, fmt.block // 32, axis=1)
    scales[0, 0] = 1  # not one scale for a whole block
    codes = rng.integers(-127, 128, (5, 3 * fmt.block), dtype=np.int8)
    act = Activations.of(codes, scales)
    packed = lib.pack(fmt, raw, 3 * fmt.block)
    got = lib.gemm(isa, fmt, packed, 3 * fmt.block, act, 5)
    want = ref.product(ref.decode(fmt.lower, raw, fmt.bytes), codes, scales)
    assert same_bits(got, want)
    for n in range(5):
        assert same_bits(lib.gemv(isa, fmt, packed, 3 * fmt.block, act, n), got[n])
        if isa == "avx2":
            assert same_bits(lib.gemv_raw(isa, fmt, raw, 3 * fmt.block, act, n), want[n])


def test_pack_ranges(native: Library, fmt: Format) -> None:
    """Packing panel ranges, from rows with a stride, equals packing all at once; missing rows are zero bytes."""
    rng = np.random.default_rng(5)
    raw = ref.random_raw(fmt.lower, rng, 50, 3, fmt.bytes + 0)
    wide = np.concatenate([raw, rng.integers(0, 256, (50, 7), dtype=np.uint8)], axis=1)
    whole = native.pack(fmt, raw, 3 * fmt.block)
    parts = np.zeros_like(whole)
    for p0, p1 in ((1, 3), (0, 1), (3, 4)):
        native.dll.hk_pack(fmt.index, wide.ctypes.data, wide.strides[0], 50, 3 * fmt.block, p0, p1, parts.ctypes.data)
    assert np.array_equal(whole, parts)


def test_set_list(native: Library) -> None:
    dll = native.dll
    names = [dll.hk_cpu_set_name(i).decode() for i in range(dll.hk_cpu_n_sets())]
    assert names == ["scalar", "avx2", "avxvnni", "avx512", "avx512vnni", "amx", "amxbf16"]
    have = dll.hk_cpu_features()
    for i, name in enumerate(names):
        runnable = bool(dll.hk_cpu_set_built(i)) and not dll.hk_cpu_set_requires(i) & ~have
        assert (dll.hkt_cpu_fill(i) == 0) == runnable, name
    assert dll.hk_cpu_fill(-1, ctypes.create_string_buffer(1 << 16)) == -1
    flags = {
        f for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags") for f in line.split()
    }
    assert bool(have & 1) == ({"avx2", "fma", "f16c"} <= flags)
    assert bool(have & 4) == ({"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags)


def test_flags_agree_with_cmake() -> None:
    text = (ROOT / "CMakeLists.txt").read_text()
    for flag in ("-ffp-contract=off", "-fno-math-errno", "-O3"):
        assert flag in CFLAGS and flag in text
