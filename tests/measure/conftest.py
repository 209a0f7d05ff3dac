"""The search for the best flags, and what is kept of it."""

from __future__ import annotations

import pytest

from no_gpu import no_gpu

__all__ = ["no_gpu"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Nothing of the machine's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def large_path(tmp_path_factory):
    from planned import write_large

    return write_large(tmp_path_factory.mktemp("large") / "large.gguf", n_layer=3)


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    from tiny import write_tiny

    return str(write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", "llama").path)
