"""Tests of the CUDA kernels: skipped, visibly, where there is no GPU, no pycuda or no compiled image."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cuda_device import Gpu, why_not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/cuda" in str(item.path).replace("\\", "/") and "on_host" not in item.keywords:
            item.add_marker(pytest.mark.cuda)


@pytest.fixture(scope="session")
def device() -> Iterator[Gpu]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    gpu = Gpu()
    yield gpu
    gpu.close()


@pytest.fixture
def gpu(device: Gpu) -> Iterator[Gpu]:
    """The device with no memory in use; checks afterwards that nothing was written outside of it."""
    yield device
    device.release()
