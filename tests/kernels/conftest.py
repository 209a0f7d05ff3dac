"""Tests in this folder import their helpers by name."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import guarded


@pytest.fixture(params=["behind", "front"])
def side(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On which side of the buffers of a test the guard page lies tight."""
    monkeypatch.setitem(guarded.TIGHT, "front", request.param == "front")
    return request.param
