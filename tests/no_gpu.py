"""Tests of the CPU stay on it where there is a GPU, which would be used by default. For conftest files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hybridkern.errors import KernelError
from hybridkern.kernels.cuda import driver


@pytest.fixture(autouse=True, scope="module")
def no_gpu() -> Iterator[None]:
    """Nobody finds one, in this process or in others that it starts."""

    def gpus() -> list[driver.Facts]:
        raise KernelError("no GPU, as these tests want it")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "gpus", gpus)
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield
