"""The device layout against gguf-py's dequantisation: the kernels' own source, compiled for the host. Needs no GPU."""

from __future__ import annotations

import ctypes as c
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_formats import QUANTISED
from gguf import GGMLQuantizationType
from random_weights import random_matrix

from hybridkern.kernels.cuda.layout import LAYOUTS, device_bytes, row_offset

pytestmark = pytest.mark.on_host
HERE = Path(__file__).parent
NAN = 0xFF


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    made = tmp_path_factory.mktemp("layout") / "layout.so"
    source = HERE / "host" / "layout_on_host.cpp"
    subprocess.run([compiler, "-std=c++17", "-O1", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    return c.CDLL(str(made))


@pytest.mark.parametrize("type_name", QUANTISED)
def test_there_and_back(library: Any, type_name: str) -> None:
    """Every code and scale comes back, padding is zero, and no byte is written beyond the matrix."""
    columns = LAYOUTS[type_name].columns
    for rows, cols in ((35, 768), (16, 256), (1, 512), *([(35, 288), (3, 32)] if columns == 64 else [])):
        raw, want = random_matrix(np.random.default_rng(rows), type_name, rows, cols, 1.0)
        size = device_bytes(type_name, rows, cols)
        at = np.full(size + 64, NAN, np.uint8)
        out = np.full((-(-rows // 16) * 16, -(-cols // columns) * columns), np.nan, np.float32)
        pointers = [c.c_void_p(a.ctypes.data) for a in (np.ascontiguousarray(raw), at, out)]
        kind = c.c_int(GGMLQuantizationType[type_name].value)
        assert library.layout_there_and_back(kind, *pointers, c.c_int64(rows), c.c_int64(cols)) == 0
        assert (at[size:] == NAN).all()
        assert np.abs(out[:rows, :cols] - want).max() <= 1e-6 * np.abs(want).max()
        assert not out[rows:].any() and not out[:, cols:].any()


@pytest.mark.parametrize("type_name", list(LAYOUTS))
def test_bytes_are_those_of_the_file(type_name: str) -> None:
    """A matrix without padding takes what its rows take in the file."""
    raw, _ = random_matrix(np.random.default_rng(0), type_name, 32, 512, 1.0)
    assert device_bytes(type_name, 32, 512) == raw.nbytes == 2 * row_offset(type_name, 16, 512)
