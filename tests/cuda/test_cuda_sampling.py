"""Choices on the device: the likeliest token, the k likeliest, and their way to the host and into the next step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cuda_device import Gpu

from hybridkern.errors import KernelError
from hybridkern.kernels.cuda import arguments, launches

Floats = npt.NDArray[np.float32]


def lse(x: Floats) -> Any:
    top = x.max(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return (top + np.log(np.exp(x.astype(np.float64) - top).sum(-1, keepdims=True)))[..., 0]


def argmax(gpu: Gpu, logits: Floats, step: Any, to: Any = None) -> tuple[Any, Any]:
    m, width = logits.shape
    best, value = gpu.empty(4 * m), gpu.empty(8 * m)
    one = launches.argmax(
        step, m, logits=gpu.put(logits), best=best, value=value, width=width, stride=width, to=to or {},
        partial=gpu.empty(m * 64 * 16), arrived=gpu.put(np.zeros(m), np.int32),
    )  # fmt: skip
    gpu.run(one)
    return gpu.get(best, m, np.int32), gpu.get(value, (m, 2))


def topk(gpu: Gpu, logits: Floats, k: int, step: Any, to: Any = None, repeat: int = 2) -> tuple[Any, Any, Any]:
    m, width = logits.shape
    ids, values, total = gpu.empty(4 * m * k), gpu.empty(4 * m * k), gpu.empty(8 * m)
    one = launches.topk(
        step, m, k, logits=gpu.put(logits), ids=ids, values=values, total=total, width=width, stride=width, to=to or {},
        partial=gpu.empty(m * launches.TOPK_PARTIAL), arrived=gpu.put(np.zeros(m), np.int32),
    )  # fmt: skip
    gpu.run(*[one] * repeat)  # twice: counters are ready again
    return gpu.get(ids, (m, k), np.int32), gpu.get(values, (m, k)), gpu.get(total, (m, 2))


@pytest.mark.parametrize("width", [1, 31, 1000, 32003])
def test_argmax(gpu: Gpu, width: int) -> None:
    m = 6
    logits = (5 * np.random.default_rng(width).standard_normal((m, width))).astype(np.float32)
    logits[0] = -7.0  # equals: the lowest index
    logits[1, width // 2] = np.nan
    logits[2] = -np.inf
    logits[3, width - 1] = 60
    for _ in range(2):
        ids, values = argmax(gpu, logits, gpu.step(m, m))
    good = [0, 3, 4, 5]
    x = logits[good]
    assert np.array_equal(ids[good], x.argmax(1)) and np.array_equal(ids[[1, 2]], [-1, -1])
    assert np.abs(values[good] - np.stack([x.max(1), lse(x)], 1)).max() <= 2e-5
    assert np.isnan(values[[1, 2]]).all()


def sorted_top(x: Floats, k: int) -> npt.NDArray[np.int64]:
    """The k largest, the lowest index first among equals."""
    return np.lexsort((np.arange(len(x)), -x))[:k]


@pytest.mark.parametrize("k", [1, 40, 64, 65, 256])
@pytest.mark.parametrize("width", [1, 200, 1000, 32003, 128256, 262144])
def test_topk(gpu: Gpu, width: int, k: int) -> None:
    m, rng = 5, np.random.default_rng(width + k)
    logits = (4 * rng.standard_normal((m, width))).astype(np.float32)
    logits[1] = np.round(logits[1] / 4)  # a dozen values: equals everywhere
    logits[2] = -0.0  # all equal, in the two ways of being zero
    logits[2, ::3] = 0.0
    logits[3] = np.float32(1e-3) * np.sort(logits[3])  # near each other, and the largest all in the last chunk
    logits[4, rng.random(width) < 0.5] = -np.inf
    logits[4, 0] = -3e38
    ids, values, total = topk(gpu, logits, k, gpu.step(m, m))
    n = min(k, width)
    for row, x in enumerate(logits):
        expected = sorted_top(x, n)
        assert np.array_equal(ids[row, :n], expected), row
        assert np.array_equal(values[row, :n], x[expected]), row
    assert (ids[:, n:] == -1).all() and np.isneginf(values[:, n:]).all()
    assert np.abs(total - np.stack([logits.max(1), lse(logits)], 1)).max() <= 2e-5 * max(1, np.abs(logits.max(1)).max())


def test_topk_says_where_nothing_can_be_chosen(gpu: Gpu) -> None:
    logits = np.random.default_rng(0).standard_normal((4, 5000)).astype(np.float32)
    logits[0, 4999] = np.nan
    logits[1] = -np.inf
    logits[2, 7] = np.inf
    ids, values, total = topk(gpu, logits, 20, gpu.step(4, 4))
    assert (ids[:3] == -1).all() and np.isnan(values[:3]).all() and np.isnan(total[:3]).all()
    assert np.array_equal(ids[3], sorted_top(logits[3], 20))


@pytest.mark.parametrize("kind", ["argmax", "topk"])
def test_a_choice_goes_to_the_host_and_into_the_next_step(gpu: Gpu, kind: str) -> None:
    m, stride = 3, 5
    logits = np.random.default_rng(3).standard_normal((m, 3000)).astype(np.float32)
    logits[1, 5] = np.nan
    positions = np.array([7, 8, 130])
    step = gpu.step(m, m, positions=positions)
    host = gpu.put(np.full((8, stride, 4), -1), np.int32)
    to = {"host": host, "host_stride": stride, "next_tokens": step["tokens"], "next_positions": step["positions"]}
    if kind == "argmax":
        argmax(gpu, logits, step, to)
    else:
        topk(gpu, logits, 10, step, to, repeat=1)
    best = np.array([logits[0].argmax(), -1, logits[2].argmax()])
    assert np.array_equal(gpu.get(step["tokens"], m, np.int32), best)
    assert np.array_equal(gpu.get(step["positions"], m, np.int32), positions + 1)
    choices = gpu.get(host, (8, stride), arguments.CHOICE)
    at = positions % 8, np.arange(m)
    assert np.array_equal(choices["best"][at], best) and np.array_equal(choices["position"][at], positions)
    good = [0, 2]
    assert np.abs(choices["lse"][at][good] - lse(logits[good])).max() <= 2e-5
    assert np.array_equal(choices["value"][at][good], logits[good].max(1)) and np.isnan(choices["value"][0, 1])
    choices["position"][at] = -1
    assert (choices["position"] == -1).all(), "nothing else was written"


@pytest.mark.on_host
@pytest.mark.parametrize(("k", "width"), [(257, 1000), (0, 1000), (40, 262145)])
def test_topk_beyond_its_limits_is_refused(k: int, width: int) -> None:
    with pytest.raises(KernelError, match=f"not {k} of {width}"):
        launches.topk({}, 1, k, partial=0, width=width)
