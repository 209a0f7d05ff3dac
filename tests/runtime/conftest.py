"""Tiny models come from tests/model; engines are small and closed after each test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from no_gpu import no_gpu

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))

from running import load
from tiny import write_tiny

from hybridkern.model import LoadedModel
from hybridkern.runtime.engine import Engine

__all__ = ["no_gpu"]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LoadedModel]:
    """tiny(arch, **options) -> a loaded model of random weights, made once."""
    made: dict[Any, LoadedModel] = {}
    folder = tmp_path_factory.mktemp("tiny")

    def make(arch: str = "llama", **options: Any) -> LoadedModel:
        key = arch, repr(sorted(options.items()))
        if key not in made:
            path = folder / f"{len(made)}.gguf"
            write_tiny(path, arch, **options)
            made[key] = load(path)
        return made[key]

    return make


@pytest.fixture
def engine() -> Iterator[Callable[..., Engine]]:
    """engine(model, **options) -> an engine whose free cache pages are full of NaN."""
    open_engines = []

    def make(model: LoadedModel, **options: Any) -> Engine:
        made = Engine(model, **({"n_ctx": 1024, "threads": 2, "n_seq": 4} | options))
        made._cache.poison()
        open_engines.append(made)
        return made

    yield make
    for e in open_engines:
        e.close()
