"""What may be said about where a model lies; tests/cuda has what happens then."""

from __future__ import annotations

from typing import Any

import pytest

from hybridkern.errors import ArgumentError
from hybridkern.runtime.arguments import LoadOptions

REST: dict[str, Any] = {
    "n_ctx": None, "threads": None, "threads_batch": None, "n_batch": 512, "n_ubatch": None, "kv_type": "f16",
    "mmap": True, "mlock": False, "validate": False,
}  # fmt: skip


def gpu(n_layer: int = 10, **named: Any) -> int | None:
    return LoadOptions.checked(**REST, **named).gpu(n_layer)


def test_the_cpu_unless_the_gpu_was_asked_for():
    assert gpu() is None
    assert [gpu(n_gpu_layers=layers) for layers in (None, "auto", 0)] == [None, None, None]


def test_all_blocks_and_the_head_are_all():
    assert gpu(n_gpu_layers="all") == 0
    assert gpu(n_gpu_layers=11, device=2) == 2
    assert gpu(n_gpu_layers=999) == 0


@pytest.mark.parametrize("layers", [1, 10])
def test_a_part_is_an_error_that_says_what_works(layers):
    with pytest.raises(ArgumentError, match=rf"n_gpu_layers = {layers}: .*'all', or 11 and more"):
        gpu(n_gpu_layers=layers)


@pytest.mark.parametrize("layers", [-1, "most", 1.5, True, "7"])
def test_what_is_no_number_of_layers(layers):
    with pytest.raises(ArgumentError, match=r"n_gpu_layers = .*allowed: 'all', 'auto', or a number"):
        gpu(n_gpu_layers=layers)


@pytest.mark.parametrize("device", [-1, "CUDA0", 1.0])
def test_what_is_no_device(device):
    with pytest.raises(ArgumentError, match="device = "):
        gpu(n_gpu_layers="all", device=device)
