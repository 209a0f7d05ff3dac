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


def checked(**named: Any) -> LoadOptions:
    return LoadOptions.checked(**REST, **named)


def test_nothing_said_is_fitting():
    assert checked().rules.fills and checked(n_gpu_layers="auto").rules.fills
    assert not checked(n_gpu_layers=0).rules.fills and not checked(n_gpu_layers="all").rules.fills


def test_only_what_names_a_gpu_wants_one():
    assert not any(checked(n_gpu_layers=n).rules.want_gpu for n in (None, "auto", 0))
    assert checked(n_gpu_layers="all").rules.want_gpu and checked(n_gpu_layers=3).rules.want_gpu
    assert checked(override_tensor="ffn=CUDA0").rules.want_gpu and checked(place="blk.0=cuda0").rules.want_gpu
    assert not checked(override_tensor="ffn=CPU", place="blk.0=cpu", n_cpu_ffn=2).rules.want_gpu


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"gpu_memory": 0}, "gpu_memory = 0 is out of range"),
        ({"gpu_memory": [1, "2"]}, "gpu_memory = '2' is not an integer"),
        ({"fit_margin": -1}, "fit_margin = -1"),
        ({"fit_ctx": 1}, "fit_ctx = 1"),
        ({"n_cpu_ffn": -2}, "n_cpu_ffn = -2"),
        ({"place": 3}, "place = 3"),
        ({"place": "blk.0"}, "not PATTERN=DEVICE"),
        ({"override_tensor": [3]}, "override_tensor"),
        ({"override_tensor": "ffn"}, "not PATTERN=DEVICE"),
        ({"split_mode": "row"}, "split_mode = 'row'; allowed: layer, none"),
        ({"tensor_split": [0, 0]}, "above 0"),
        ({"tensor_split": [1, -1]}, "numbers from 0 on"),
        ({"plan": "/nowhere/plan.json"}, "cannot be read"),
        ({"plan": __file__}, "no plan that hybridkern saved"),
        ({"device": None, "n_gpu_layers": "all"}, "give one of them"),
    ],
)
def test_what_cannot_be_used(named, said):
    with pytest.raises(ArgumentError, match=said):
        checked(**named)


@pytest.mark.parametrize("layers", [-1, "most", 1.5, True, "7"])
def test_what_is_no_number_of_layers(layers):
    with pytest.raises(ArgumentError, match=r"n_gpu_layers = .*allowed: 'all', 'auto', or a number"):
        checked(n_gpu_layers=layers)


@pytest.mark.parametrize("device", [-1, "CUDA0", 1.0])
def test_what_is_no_device(device):
    with pytest.raises(ArgumentError, match="device = "):
        checked(n_gpu_layers="all", device=device)
