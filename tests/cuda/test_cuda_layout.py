"""The device layout against gguf-py's dequantisation: the kernels' own source, compiled for the host. Needs no GPU."""

from __future__ import annotations

import ctypes as c
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cuda_formats import QUANTISED, as_seen, error
from gguf import GGMLQuantizationType
from random_weights import random_matrix

from hybridkern.kernels import _cpu
from hybridkern.kernels.cpu.weights import FORMATS, packed_bytes
from hybridkern.kernels.cuda.layout import LAYOUTS, device_bytes, row_offset
from hybridkern.kernels.interface import Weight

pytestmark = pytest.mark.on_host
HERE = Path(__file__).parent
NAN = 0xFF
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    made = tmp_path_factory.mktemp("layout") / "on_host.so"
    sources = [str(HERE / "host" / f"{name}_on_host.cpp") for name in ("layout", "step", "halves")]
    options = ["-std=c++20", "-O1", "-shared", "-fPIC", "-pthread"]
    subprocess.run([compiler, *options, *sources, "-o", str(made)], check=True)
    return c.CDLL(str(made))


def converted(library: Any, type_name: str, raw: Bytes, rows: int, cols: int) -> tuple[Bytes, Floats]:
    """A matrix in device layout, poisoned beyond its end, and what comes back from there, padding included."""
    columns = LAYOUTS[type_name].columns
    at = np.full(device_bytes(type_name, rows, cols) + 64, NAN, np.uint8)
    out = np.full((-(-rows // 16) * 16, -(-cols // columns) * columns), np.nan, np.float32)
    pointers = [pointer(a) for a in (np.ascontiguousarray(raw), at, out)]
    kind = c.c_int(GGMLQuantizationType[type_name].value)
    assert library.layout_there_and_back(kind, *pointers, c.c_int64(rows), c.c_int64(cols)) == 0
    return at, out


def pointer(a: npt.NDArray[Any]) -> c.c_void_p:
    return c.c_void_p(a.ctypes.data)


@pytest.mark.parametrize("type_name", QUANTISED)
def test_there_and_back(library: Any, type_name: str) -> None:
    """Every code and scale comes back, padding is zero, and no byte is written beyond the matrix."""
    columns = LAYOUTS[type_name].columns
    for rows, cols in ((35, 768), (16, 256), (1, 512), *([(35, 288), (3, 32)] if columns == 64 else [])):
        raw, want = random_matrix(np.random.default_rng(rows), type_name, rows, cols, 1.0)
        at, out = converted(library, type_name, raw, rows, cols)
        assert (at[device_bytes(type_name, rows, cols) :] == NAN).all()
        assert np.abs(out[:rows, :cols] - want).max() <= 1e-6 * np.abs(want).max()
        assert not out[rows:].any() and not out[:, cols:].any()


@pytest.mark.parametrize("type_name", list(LAYOUTS))
def test_panels_of_the_cpu_become_the_same(library: Any, type_name: str) -> None:
    """Packed by the CPU set, a matrix is converted to the same bytes, and none is written beyond it."""
    block = LAYOUTS[type_name].block if not LAYOUTS[type_name].is_float else 1
    few = {256: (), 32: ((35, 288), (3, 32)), 1: ((35, 77), (3, 1), (16, 33))}[block]
    for rows, cols in ((35, 768), (16, 256), (1, 512), *few):
        raw, _ = random_matrix(np.random.default_rng(rows), type_name, rows, cols, 1.0)
        raw = np.ascontiguousarray(raw)
        kind = c.c_int(GGMLQuantizationType[type_name].value)
        nbytes = device_bytes(type_name, rows, cols)
        want = raw.reshape(-1) if LAYOUTS[type_name].is_float else converted(library, type_name, raw, rows, cols)[0]
        at = np.full(nbytes + 64, NAN, np.uint8)
        panels = packed(type_name, raw, rows, cols)
        assert library.layout_of_panels(kind, pointer(panels), pointer(at), c.c_int64(rows), c.c_int64(cols)) == 0
        assert np.array_equal(at[:nbytes], want[:nbytes]) and (at[nbytes:] == NAN).all()


def packed(type_name: str, raw: Bytes, rows: int, cols: int) -> Bytes:
    """As the CPU set packs it."""
    w = Weight("w", type_name, rows, cols, raw)
    panels = np.full(packed_bytes(w), NAN, np.uint8)
    _cpu.pack(FORMATS[type_name][0], raw.ctypes.data, raw.strides[0], rows, cols, panels.ctypes.data, 1)
    return panels


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("type_name", QUANTISED)
def test_steps_of_one_column(library: Any, type_name: str, precise: bool) -> None:
    """A warp's steps, its lanes threads and the matrix instruction by definition, against float64."""
    for rows, cols in ((19, 512), *([(16, 288)] if LAYOUTS[type_name].columns == 64 else [])):
        rng = np.random.default_rng(1)
        raw, weights = random_matrix(rng, type_name, rows, cols, 1.0)
        at, _ = converted(library, type_name, raw, rows, cols)
        x = (rng.standard_normal((1, cols)) * 10.0 ** rng.integers(-2, 3, (1, cols))).astype(np.float32)
        x[0, 32:64] = 0
        x[0, 64:96] *= 1e-36
        y = stepped(library, type_name, at, rows, cols, x, precise=precise)
        assert error(y, as_seen(x, precise) @ weights.T) <= 1e-6
        assert error(y, x.astype(np.float64) @ weights.T) <= (2e-4 if precise else 2e-2)
        x[0, 100] = np.inf
        assert np.isnan(stepped(library, type_name, at, rows, cols, x, precise=precise)).all()


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("type_name", QUANTISED)
def test_steps_of_few_columns(library: Any, type_name: str, staged: bool) -> None:
    """The same with halves; NaN wherever there is no token."""
    for rows, cols in ((19, 512), *([(16, 288)] if LAYOUTS[type_name].columns == 64 else [])):
        rng = np.random.default_rng(2)
        raw, weights = random_matrix(rng, type_name, rows, cols, 1.0)
        at, _ = converted(library, type_name, raw, rows, cols)
        x = rng.standard_normal((5, cols)).astype(np.float16).astype(np.float32)
        y = stepped(library, type_name, at, rows, cols, x, staged=staged)
        assert error(y, x.astype(np.float64) @ weights.T) <= 1e-3


def stepped(library: Any, type_name: str, at: Bytes, rows: int, cols: int, x: Floats, **given: bool) -> Floats:
    """x [n][cols] times a matrix in device layout, by hk_step.cuh: [n][rows]."""
    y = np.full((len(x), rows), np.nan, np.float32)
    kind, size = c.c_int(GGMLQuantizationType[type_name].value), (c.c_int64(rows), c.c_int64(cols))
    how = [c.c_int(given.get(name, False)) for name in ("precise", "staged")]
    done = library.product_on_host(
        kind, pointer(at), *size, pointer(np.ascontiguousarray(x)), c.c_int(len(x)), *how, pointer(y)
    )
    assert done == 0
    return y


@pytest.mark.parametrize("n", [3, 16])
@pytest.mark.parametrize("type_name", QUANTISED)
def test_halves_of_a_product(library: Any, type_name: str, n: int) -> None:
    """The same with weights and input as halves, with bias, and added in place; NaN wherever the input has no row."""
    for rows, cols in ((19, 512), *([(35, 288)] if LAYOUTS[type_name].columns == 64 else [])):
        rng = np.random.default_rng(n)
        raw, weights = random_matrix(rng, type_name, rows, cols, 1.0)
        at, _ = converted(library, type_name, raw, rows, cols)
        x = rng.standard_normal((n, cols)).astype(np.float16).astype(np.float32)
        scales = 2.0 ** rng.integers(-3, 4, n).astype(np.float32)
        bias, add = (50 * rng.standard_normal(size).astype(np.float32) for size in (rows, (n, rows)))
        y = np.concatenate([add, np.full((13, rows), np.nan, np.float32)])
        kind, size = c.c_int(GGMLQuantizationType[type_name].value), (c.c_int64(rows), c.c_int64(cols))
        inputs = pointer(x), c.c_int(n), pointer(scales), pointer(bias)
        assert library.halves_on_host(kind, pointer(at), *size, *inputs, pointer(y)) == 0
        assert error(y[:n], (x.astype(np.float64) @ weights.T) * scales[:, None] + bias + add) <= 1e-3
        assert np.isnan(y[n:]).all()


@pytest.mark.parametrize("type_name", list(LAYOUTS))
def test_bytes_are_those_of_the_file(type_name: str) -> None:
    """A matrix without padding takes what its rows take in the file."""
    raw, _ = random_matrix(np.random.default_rng(0), type_name, 32, 512, 1.0)
    assert device_bytes(type_name, 32, 512) == raw.nbytes == 2 * row_offset(type_name, 16, 512)
