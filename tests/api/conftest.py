"""Tiny models for the tests of the public interface."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from no_gpu import no_gpu

__all__ = ["no_gpu"]
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "model"), str(HERE.parent)]


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory):
    from tiny import write_tiny

    return write_tiny(tmp_path_factory.mktemp("models") / "llama.gguf", "llama").path


@pytest.fixture(scope="session")
def tiny_longrope(tmp_path_factory):
    from tiny import write_tiny

    path = tmp_path_factory.mktemp("models") / "longrope.gguf"
    return write_tiny(path, "phi3", scaling="longrope", original_context=32).path
