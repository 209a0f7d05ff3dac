"""A large model of which only the header exists."""

from __future__ import annotations

from pathlib import Path

import pytest
from planned import model_of, write_large

from hybridkern.model import LoadedModel
from no_gpu import no_gpu

__all__ = ["no_gpu"]


@pytest.fixture(scope="session")
def large_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_large(tmp_path_factory.mktemp("large") / "7b.gguf")


@pytest.fixture(scope="session")
def large(large_path: Path) -> LoadedModel:
    return model_of(large_path)
