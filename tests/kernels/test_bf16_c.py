"""Products of tiles of bf16 (the set amxbf16), against float64 on operands rounded by NumPy."""

from __future__ import annotations

import ctypes
import subprocess

import gguf
import numpy as np
import pytest
import quant_reference as ref
from guarded import guarded
from quant_lib import CFLAGS, CSRC, QUANTS, Act, Activations, Format, Library

FEW = 24  # columns that the exact kernels multiply
ISA = "amxbf16"


@pytest.fixture(scope="module")
def lib(request: pytest.FixtureRequest, native: Library) -> Library:
    if ISA in native.sets:
        return native
    library: Library | None = request.getfixturevalue("emulated")
    if library is None:
        pytest.skip("emulation needs AVX2")
    return library


@pytest.fixture(params=QUANTS)
def fmt(request: pytest.FixtureRequest) -> Format:
    return QUANTS[request.param]


def rounded(x: np.ndarray) -> np.ndarray:
    """To bf16 and back: to the nearest, ties to even; denormals to zero."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    out = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), np.where(abs(x) < 2.0**-126, 0 * out, out))


def weights(f: Format, raw: np.ndarray) -> np.ndarray:
    """What the blocks mean, float64 [rows][K], rounded to float32 once."""
    w = ref.decode(f.lower, raw, f.bytes)
    value = np.repeat(w.scale * w.d[..., None].astype(np.float64), f.block // w.scale.shape[-1], axis=-1) * w.values
    if w.mins is not None:
        value -= np.repeat(w.mins * w.m[..., None].astype(np.float64), f.block // w.mins.shape[-1], axis=-1)
    elif w.m is not None:
        value += w.m[..., None]
    return value.reshape(len(raw), -1).astype(np.float32)


class Columns:
    """Float columns as the runtime gives them to products: tiles, and codes beside."""

    def __init__(self, lib: Library, x: np.ndarray, k: int) -> None:
        self.stride = 16 * k + 512  # not the least: tiles of other columns may lie anywhere
        self.tiles = lib.tiles(ISA, x, self.stride)
        scales = np.maximum(abs(np.nan_to_num(x)).reshape(len(x), -1, 32).max(axis=2), 1e-30) / 127
        codes = np.rint(np.nan_to_num(x) / np.repeat(scales, 32, axis=1)).clip(-127, 127)
        self.codes = Activations.of(codes.astype(np.int8), scales.astype(np.float32))

    def struct(self) -> Act:
        act = self.codes.struct()
        act.tiles, act.tiles_stride = self.tiles.ctypes.data, self.stride
        return act


def multiply(lib: Library, f: Format, raw: np.ndarray, x: np.ndarray) -> np.ndarray:
    """x @ W.T, float32 [n][rows]."""
    k = x.shape[1]
    packed, columns = lib.pack(f, raw, k), Columns(lib, x, k)
    return lib.gemm(ISA, f, packed, k, columns.struct(), len(x))[:, : len(raw)]


def check(got: np.ndarray, w: np.ndarray, x: np.ndarray) -> None:
    a, b = rounded(x).astype(np.float64), rounded(w).astype(np.float64)
    assert (abs(got - a @ b.T) <= 2e-6 * (abs(a) @ abs(b).T)).all()


def test_weights_are_rounded_once(lib: Library, fmt: Format) -> None:
    """Unit vectors bring the weights themselves."""
    rng = np.random.default_rng(1)
    k = 256
    raw = ref.random_raw(fmt.lower, rng, 32, k // fmt.block, fmt.bytes)
    got = multiply(lib, fmt, raw, np.eye(k, dtype=np.float32))
    assert np.array_equal(got.T, rounded(weights(fmt, raw)))


@pytest.mark.parametrize(("rows", "n", "k"), [(40, 49, 2304), (16, 25, 1024), (70, 64, 256)])
def test_products(lib: Library, fmt: Format, rows: int, n: int, k: int) -> None:
    """Against operands rounded here; against gguf's weights and inputs that nobody rounded, by what bf16 may cost."""
    rng = np.random.default_rng(rows)
    raw = ref.random_raw(fmt.lower, rng, rows, k // fmt.block, fmt.bytes)
    x = rng.standard_normal((n, k)).astype(np.float32)
    got = multiply(lib, fmt, raw, x)
    check(got, weights(fmt, raw), x)
    plain = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(fmt.gguf_id)).astype(np.float64)
    assert (abs(got - x @ plain.T) <= 2.0**-8 * (abs(x) @ abs(plain).T)).all()
    assert abs(got - x @ plain.T).max() > 0


def test_blocks_of_panels_and_columns(lib: Library) -> None:
    """Past every internal block; a column's bits do not depend on its neighbours."""
    rng = np.random.default_rng(2)
    f = QUANTS["q4_0"]
    raw = ref.random_raw(f.lower, rng, 16 * 35 + 3, 2, f.bytes)
    x = rng.standard_normal((563, 64)).astype(np.float32)
    got = multiply(lib, f, raw, x)
    check(got, weights(f, raw), x)
    for first, n in ((0, 33), (512, 51), (16, 100)):
        assert np.array_equal(multiply(lib, f, raw, x[first : first + n]), got[first : first + n])


def test_faults_stay_visible(lib: Library) -> None:
    rng = np.random.default_rng(3)
    f = QUANTS["q8_0"]
    raw = ref.random_raw(f.lower, rng, 20, 4, f.bytes)
    x = rng.standard_normal((40, 128)).astype(np.float32)
    x[7, 5], x[9, 70], x[11, 0] = np.nan, np.inf, 3.4e38  # the last one is beyond bf16
    raw[3, 34:36] = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)
    raw[4, :2] = np.frombuffer(np.float16(np.nan).tobytes(), np.uint8)
    with np.errstate(all="ignore"):
        got = multiply(lib, f, raw, x)
    bad = np.zeros(got.shape, bool)
    bad[[7, 9, 11]] = True
    bad[:, [3, 4]] = True
    assert not np.isfinite(got[bad]).any()
    assert np.isfinite(got[~bad]).all()


def test_few_columns_and_codes_alone_are_exact(lib: Library, fmt: Format) -> None:
    """To the bit what the set below makes of the codes."""
    rng = np.random.default_rng(4)
    k = 512
    raw = ref.random_raw(fmt.lower, rng, 20, k // fmt.block, fmt.bytes)
    packed = lib.pack(fmt, raw, k)
    columns = Columns(lib, rng.standard_normal((50, k)).astype(np.float32), k)
    assert lib.origin(ISA, fmt, 1) == ISA
    want = lib.gemm("amx", fmt, packed, k, columns.codes, 50)
    assert np.array_equal(lib.gemm(ISA, fmt, packed, k, columns.codes, 50), want)
    few = lib.gemm(ISA, fmt, packed, k, columns.struct(), FEW)
    assert np.array_equal(few, want[:FEW])
    assert not np.array_equal(lib.gemm(ISA, fmt, packed, k, columns.struct(), 50), want)


SEAM = r"""
#include "runtime/hk_tape.h"
uint8_t *hk_pool_scratch(int thread) { (void)thread; return NULL; }
static void no_codes(const float *x, int64_t K, int8_t *codes, float *scales, int16_t *sums) {
    (void)x, (void)K, (void)codes, (void)scales, (void)sums;
}
/* Emits n rows of x [n][K] in two parts each, and returns the columns from row `first` on. */
void hkt_emit(hk_to_tiles_fn to_tiles, const float *x, int64_t n, int64_t K, int64_t first, uint16_t *tiles,
              hk_act *out) {
    static hk_cpu_set set;
    set.op.to_tiles = to_tiles;
    set.op.quantize[HK_ACT_Q8_32] = no_codes;
    hk_act_buf act = {.kind = HK_ACT_Q8_32, .alias = {-1, 0, 0}, .tiles = tiles, .tiles_stride = hk_tiles_stride(K)};
    hk_tape tape = {.set = &set, .acts = &act, .n_acts = 1};
    hk_run run = {.tape = &tape};
    hk_op op = {.n_emit = 1};
    for (int64_t i = 0; i < n; i++) {
        hk_emit(&run, &op, x + i * K, i, K / 2, K);
        hk_emit(&run, &op, x + i * K, i, 0, K / 2);
    }
    *out = hk_act_from(&tape, 0, first);
}
int64_t hkt_stride(int64_t K) { return hk_tiles_stride(K); }
"""


@pytest.fixture(scope="module")
def seam(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    tmp = tmp_path_factory.mktemp("seam")
    (tmp / "seam.c").write_text(SEAM)
    sources = [str(tmp / "seam.c"), str(CSRC / "runtime/hk_ops_rows.c")]
    subprocess.run(["gcc", *CFLAGS, "-O1", "-shared", *sources, "-o", str(tmp / "seam.so"), "-lm"], check=True)
    dll = ctypes.CDLL(str(tmp / "seam.so"))
    dll.hkt_stride.restype = ctypes.c_int64
    dll.hkt_stride.argtypes = [ctypes.c_int64]
    p, n = ctypes.c_void_p, ctypes.c_int64
    dll.hkt_emit.argtypes = [p, p, n, n, n, p, p]
    return dll


def test_rows_of_a_step_become_tiles(lib: Library, seam: ctypes.CDLL) -> None:
    """As the runtime emits them, from the first row on and from a later one; a row within a group has no tiles."""
    rng = np.random.default_rng(5)
    f, k, n = QUANTS["q4_k"], 1536, 100
    raw = ref.random_raw(f.lower, rng, 32, k // f.block, f.bytes)
    packed, x, act = lib.pack(f, raw, k), rng.standard_normal((n, k)).astype(np.float32), Act()
    stride = seam.hkt_stride(k)
    assert stride >= 16 * k
    assert stride % 16384 == 0
    assert stride // 16384 % 2 == 1
    tiles = guarded(-(-n // 16) * stride * 2)
    to_tiles = lib.dll.hkt_to_tiles(lib.sets[ISA])
    for first in (0, 64, 7):
        seam.hkt_emit(to_tiles, x.ctypes.data, n, k, first, tiles.ctypes.data, ctypes.addressof(act))
        if first % 16:
            assert not act.tiles
        else:
            check(lib.gemm(ISA, f, packed, k, act, n - first), weights(f, raw), x[first:])
