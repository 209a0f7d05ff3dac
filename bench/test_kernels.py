"""Microbenchmarks of the kernels, one for every format of the table on every kernel set that this CPU runs.

    pytest bench --benchmark-only                    # all of it
    pytest bench --benchmark-only -k "Q4_K and avx2"

Checked first, then timed cold: a product agrees with dequantised weights, and matrices are larger than the caches or
there are several of them in turn. GB/s stand beside the read bandwidth and GMAC/s beside the int8 peak of the same run,
both with one thread, in the columns of the benchmark's extra info and in the closing summary.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import numpy as np
import pytest

from hybridkern import kernels, quants
from hybridkern.kernels.cpu.selection import VARIABLE, runnable
from hybridkern.kernels.cpu.weights import FORMATS
from hybridkern.kernels.rates import int8_rate, read_rate

ROWS, COLS, COLUMNS = 2048, 2048, 64
COLD_BYTES = 96 << 20
RESULTS: list[tuple[str, str, str, float, str, float]] = []


def random_blocks(type: str, n_blocks: int) -> np.ndarray:
    """Random bytes of a format; float formats and scales are kept finite."""
    rng = np.random.default_rng(0)
    size = FORMATS[type][3]
    if type in ("F32", "F16", "BF16"):
        values = rng.standard_normal(n_blocks).astype(np.float32)
        if type == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype(np.float16 if type == "F16" else np.float32).view(np.uint8)
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    block = FORMATS[type][2]
    try:
        values = rng.standard_normal((1, n_blocks * block)).astype(np.float32)
        return quantize(values, GGMLQuantizationType[type]).reshape(-1)
    except NotImplementedError:
        # Formats that gguf-py only reads: random codes, with every exponent bit of every scale cleared but one.
        raw = rng.integers(0, 256, (n_blocks, size), dtype=np.uint8)
        raw[:, 1::2] &= 0x9F
        raw[:, 1::2] &= 0xBF
        return raw.reshape(-1)


@pytest.fixture(params=runnable())
def isa(request, monkeypatch) -> str:
    monkeypatch.setenv(VARIABLE, request.param)
    return request.param


@pytest.fixture(scope="module")
def peaks() -> Iterator[dict[str, float]]:
    measured = {"read": read_rate(1) / 1e9}
    for name in runnable():
        measured[name] = int8_rate(1, name) / 1e9
    yield measured
    from rich.console import Console
    from rich.table import Table

    rates = ", ".join(f"{name} {measured[name]:.1f}" for name in runnable())
    title = f"one thread; read {measured['read']:.1f} GB/s, int8 peak GMAC/s: {rates}"
    table = Table("kernel", "format", "set", "rate", "of peak", title=title, title_justify="left")
    for kernel, type, name, rate, unit, part in RESULTS:
        table.add_row(kernel, type, name, f"{rate:.2f} {unit}", f"{100 * part:.0f} %")
    Console(width=120, stderr=True).print(table)


def note(benchmark, kernel: str, type: str, isa: str, work: float, unit: str, peak: float) -> None:
    rate = work / benchmark.stats.stats.median / 1e9
    benchmark.extra_info.update({"rate": rate, "unit": unit, "of_peak": rate / peak})
    RESULTS.append((kernel, type, isa, rate, unit, rate / peak))


def raw_matrix(type: str, rows: int = ROWS) -> np.ndarray:
    block = FORMATS[type][2]
    one = random_blocks(type, 64 * COLS // block)
    return np.tile(one, rows // 64)


@pytest.mark.parametrize("type", FORMATS)
def test_dequantize(benchmark, isa, peaks, type):
    raw = raw_matrix(type)
    benchmark.group = f"dequantize {type}"
    out = benchmark(quants.dequantize, raw, type, (ROWS, COLS))
    assert np.isfinite(out).all()
    note(benchmark, "dequantize", type, isa, raw.nbytes + out.nbytes, "GB/s", peaks["read"])


@pytest.mark.parametrize("type", FORMATS)
def test_matvec(benchmark, isa, peaks, type):
    raw = raw_matrix(type)
    W = kernels.pack(raw, type, (ROWS, COLS))
    x = np.random.default_rng(1).standard_normal(COLS).astype(np.float32)
    want = quants.dequantize(raw, type, (ROWS, COLS)).astype(np.float64) @ x
    got = kernels.matvec(W, x)
    assert np.abs(got - want).max() <= 0.03 * max(1e-6, np.abs(want).max())
    copies = [kernels.pack(raw, type, (ROWS, COLS)) for _ in range(max(1, COLD_BYTES // W.nbytes))]
    turn = itertools.cycle(copies)
    benchmark.group = f"matvec {type}"
    benchmark(lambda: kernels.matvec(next(turn), x))
    note(benchmark, "matvec", type, isa, raw.nbytes, "GB/s", peaks["read"])


@pytest.mark.parametrize("type", FORMATS)
def test_matmul(benchmark, isa, peaks, type):
    W = kernels.pack(raw_matrix(type), type, (ROWS, COLS))
    X = np.random.default_rng(1).standard_normal((COLUMNS, COLS)).astype(np.float32)
    got = kernels.matmul(W, X)
    assert np.array_equal(got[3], kernels.matvec(W, X[3])), "columns depend on each other"
    benchmark.group = f"matmul {type}"
    benchmark(kernels.matmul, W, X)
    note(benchmark, "matmul", type, isa, ROWS * COLS * COLUMNS, "GMAC/s", peaks[isa])


def test_every_set_was_forced():
    """The variable that the fixture sets is the one that the kernels read."""
    for name in runnable():
        os.environ[VARIABLE] = name
        assert kernels.active() == name
    del os.environ[VARIABLE]
