"""The paged cache and attention over it against float64."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from cuda_device import Gpu
from cuda_formats import error
from gguf.quants import dequantize, quantize

from hybridkern.kernels.cuda import cache_layout, launches

Floats = npt.NDArray[np.float64]
KV = ["f16", "q8_0", "q4_0"]


def rounded(x: npt.NDArray[np.float32], kv_type: str) -> Floats:
    """What the cache keeps of x [..., dim]."""
    if kv_type == "f16":
        return x.astype(np.float16).astype(np.float64)
    kind = gguf.GGMLQuantizationType[kv_type.upper()]
    return dequantize(quantize(x, kind), kind).astype(np.float64)


class Cache:
    """Sequences of random keys and values, stored by the kernel in scattered pages of poisoned memory."""

    def __init__(self, gpu: Gpu, kv_type: str, lengths: list[int], n_kv: int, dim_k: int, dim_v: int) -> None:
        rng = np.random.default_rng([n_kv, dim_k, *lengths])
        head = cache_layout.cache_head_bytes(kv_type, dim_k, dim_v)
        offset, page_bytes = 256, n_kv * head + 512
        need = [-(-n // 128) for n in lengths]
        ids = rng.permutation(sum(need) + 3)[: sum(need)]
        self.table = np.full((len(lengths), max(need) + 1), 10**6, np.int32)
        self.keys, self.values = [], []
        self.struct = cache_layout.cache_struct(
            gpu.empty((sum(need) + 3) * page_bytes), page_bytes, offset, n_kv, dim_k, dim_v, kv_type
        )
        for s, n in enumerate(lengths):
            self.table[s, : need[s]] = ids[sum(need[:s]) : sum(need[: s + 1])]
            k, v = (rng.standard_normal((n, n_kv, d)).astype(np.float32) for d in (dim_k, dim_v))
            step = gpu.step(n, positions=np.arange(n), sequences=np.full(n, s), pages=self.table)
            streams = [
                {"x": gpu.put(x), "stride": n_kv * d, "n_heads": n_kv, "dim": d, "store": store}
                for x, d, store in ((k, dim_k, 1), (v, dim_v, 2))
            ]
            gpu.run(launches.heads(step, n, self.struct, streams))
            self.keys.append(rounded(k, kv_type))
            self.values.append(rounded(v, kv_type))


def attention(
    cache: Cache, q: Any, sequences: Any, positions: Any, scale: float, window: int, softcap: float
) -> Floats:
    """q [n][heads][dim_k] -> [n][heads][dim_v]."""
    out = []
    for x, s, p in zip(q.astype(np.float64), sequences, positions, strict=True):
        low = max(0, p - window + 1) if window else 0
        k, v = cache.keys[s][low : p + 1], cache.values[s][low : p + 1]
        group = len(x) // k.shape[1]
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        scores = np.einsum("hd,phd->hp", x * scale, k)
        scores = softcap * np.tanh(scores / softcap) if softcap else scores
        w = np.exp(scores - scores.max(1, keepdims=True))
        out.append(np.einsum("hp,phd->hd", w / w.sum(1, keepdims=True), v))
    return np.array(out)


def check(
    gpu: Gpu, cache: Cache, kv_type: str, n_head: int, sequences: Any, positions: Any, window: int = 0,
    softcap: float = 0.0, splits: int = 1, processors: int = 132,
) -> float:  # fmt: skip
    n, c = len(positions), cache.struct
    dim_k, dim_v = c["dim_k"], c["dim_v"]
    q = np.random.default_rng(n).standard_normal((n, n_head, dim_k)).astype(np.float32)
    out = gpu.empty(n * n_head * dim_v * 4)
    step = gpu.step(n, positions=positions, sequences=sequences, pages=cache.table)
    scale = 1 / np.sqrt(dim_k)
    one = launches.attend(
        step, n, c, kv_type, splits=splits, q=gpu.put(q), out=out, q_stride=n_head * dim_k, out_stride=n_head * dim_v,
        partial=gpu.empty(n * n_head * splits * (dim_v + 2) * 4), arrived=gpu.put(np.zeros(n * n_head), np.int32),
        n_head=n_head, window=window, scale=scale, softcap=softcap, processors=processors,
    )  # fmt: skip
    gpu.run(one, one)  # twice: counters are ready again
    return error(gpu.get(out, (n, n_head, dim_v)), attention(cache, q, sequences, positions, scale, window, softcap))


DIMS = [(16, 16), (64, 64), (96, 64), (128, 128), (256, 256)]


@pytest.mark.parametrize("splits", [1, 5])
@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("kv_type", KV)
def test_decode(gpu: Gpu, kv_type: str, dims: tuple[int, int], splits: int) -> None:
    if kv_type != "f16" and dims[0] % 32:
        pytest.skip("blocks of 32")
    cache = Cache(gpu, kv_type, [700, 65, 1], 2, *dims)
    assert check(gpu, cache, kv_type, 6, [0, 1, 2, 0], [699, 64, 0, 128], splits=splits) <= 2e-3


@pytest.mark.parametrize("dims", [(80, 80), (96, 96), (112, 112), (160, 192), (64, 128), *DIMS])
@pytest.mark.parametrize("kv_type", KV)
def test_decode_of_one_token(gpu: Gpu, kv_type: str, dims: tuple[int, int]) -> None:
    if kv_type != "f16" and (dims[0] % 32 or dims[1] % 32):
        pytest.skip("blocks of 32")
    cache = Cache(gpu, kv_type, [1500], 2, *dims)
    for heads in (2, 8, 40):  # groups of 1, 4, and of 20: more than a tile
        for position in (0, 15, 16, 63, 64, 127, 500, 1499):
            for splits in (1, 8, 24):
                at = [0], [position]
                assert check(gpu, cache, kv_type, heads, *at, splits=splits) <= 2e-3, position
    assert check(gpu, cache, kv_type, 4, [0], [1400], 300, 20.0, splits=16) <= 2e-3


@pytest.mark.parametrize("group", [1, 2, 4, 7, 8, 9])
def test_decode_of_several_tokens(gpu: Gpu, group: int) -> None:
    """Tokens of one sequence that were all stored by the step itself, beside those of others."""
    cache = Cache(gpu, "f16", [260, 40], 2, 128, 128)
    sequences, positions = [0, 0, 0, 0, 0, 1, 1, 0], [255, 256, 257, 258, 259, 38, 39, 12]
    assert check(gpu, cache, "f16", 2 * group, sequences, positions, splits=3) <= 2e-3


@pytest.mark.parametrize("n", [9, 31, 32, 33, 255, 257, 512])
@pytest.mark.parametrize("kv_type", KV)
def test_prefill(gpu: Gpu, kv_type: str, n: int) -> None:
    cache = Cache(gpu, kv_type, [n + 131], 2, 64, 64)
    for processors in (132, 1):  # narrow tiles and wide ones
        at = np.zeros(n, int), np.arange(131, n + 131)
        assert check(gpu, cache, kv_type, 6, *at, processors=processors) <= 2e-3


@pytest.mark.parametrize("dims", [(16, 16), (80, 80), (96, 96), (112, 112), (128, 128), (256, 256), (64, 128)])
@pytest.mark.parametrize("kv_type", KV)
def test_prefill_head_sizes(gpu: Gpu, kv_type: str, dims: tuple[int, int]) -> None:
    if kv_type != "f16" and (dims[0] % 32 or dims[1] % 32):
        pytest.skip("blocks of 32")
    cache = Cache(gpu, kv_type, [200], 1, *dims)
    for processors in (132, 1):
        assert check(gpu, cache, kv_type, 1, np.zeros(70, int), np.arange(130, 200), processors=processors) <= 2e-3


@pytest.mark.parametrize("n", [3, 40])
@pytest.mark.parametrize(("window", "softcap"), [(1, 0.0), (8, 0.0), (100, 1.5), (0, 1.5)])
@pytest.mark.parametrize("kv_type", KV)
def test_window_and_softcap(gpu: Gpu, kv_type: str, n: int, window: int, softcap: float) -> None:
    cache = Cache(gpu, kv_type, [400], 1, 64, 64)
    assert check(gpu, cache, kv_type, 20, np.zeros(n, int), np.arange(400 - n, 400), window, softcap, 2) <= 2e-3


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("kv_type", KV)
def test_several_sequences_in_a_step(gpu: Gpu, kv_type: str, dim: int) -> None:
    lengths = [150, 9, 300, 1]
    cache = Cache(gpu, kv_type, lengths, 2, dim, dim)
    take = [20, 9, 33, 1]
    sequences = np.repeat(range(4), take)
    positions = np.concatenate([np.arange(n - t, n) for n, t in zip(lengths, take, strict=True)])
    for window, processors in ((0, 132), (40, 132), (0, 1), (40, 1)):
        assert check(gpu, cache, kv_type, 4, sequences, positions, window, processors=processors) <= 2e-3
