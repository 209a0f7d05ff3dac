"""Tests in this folder import their helpers by name, and share the compiled kernels."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import guarded
from quant_lib import Library, built_isas, compile_library


@pytest.fixture(params=["behind", "front"])
def side(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On which side of the buffers of a test the guard page lies tight."""
    monkeypatch.setitem(guarded.TIGHT, "front", request.param == "front")
    return request.param


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Library:
    isas = built_isas()
    return Library(compile_library(tmp_path_factory.mktemp("native"), isas, False), isas, False)


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory, native: Library) -> Library | None:
    if "avx2" not in native.sets:
        return None
    isas = [isa for isa in built_isas() if isa != "avx2"]
    return Library(compile_library(tmp_path_factory.mktemp("emulated"), isas, True), isas, True)
