"""Whole tiny models on the GPU against the reference set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import CASES, ids_of
from running import batch_of, load
from tiny import write_tiny

from hybridkern.kernels.interface import Batch, Recorder
from hybridkern.kernels.reference import ReferenceSet

MAX_PAGES, MAX_ROWS, MAX_OUTPUTS = 8, 300, 300
FORMATS = [
    "F16",
    "BF16",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
]


class Both:
    """A tiny model on the GPU and in the reference; pages are handed out backwards."""

    def __init__(self, folder: Path, arch: str, kv_type: str = "f16", **options: Any) -> None:
        from hybridkern.kernels.cuda import CudaSet

        self.model = load(write_tiny(folder / "tiny.gguf", arch, **options).path)
        r = Recorder()
        logits = self.model.record(r)
        self.reference = ReferenceSet(r.ops)
        self.tape = CudaSet().lower(
            r.ops, logits=logits, specs=self.model.kv_specs, kv_type=kv_type, n_pages=4 * MAX_PAGES, n_seq=4,
            max_pages=MAX_PAGES, max_rows=MAX_ROWS, max_outputs=MAX_OUTPUTS,
        )  # fmt: skip
        self.table = np.arange(4 * MAX_PAGES, dtype=np.int32)[::-1].reshape(4, MAX_PAGES).copy()

    def worst(self, batch: Batch) -> float:
        got, want = self.tape.run(batch, self.table), self.reference.run(batch)
        assert np.isfinite(got.logits).all()
        x = got.logits.astype(np.float64)
        assert np.array_equal(got.best, x.argmax(1))
        shifted = x - x.max(1, keepdims=True)
        assert np.abs(got.logprob + np.log(np.exp(shifted).sum(1))).max() <= 1e-4
        return float(np.abs(x - want).max())


def variant_of(model: Any, n: int) -> int | None:
    return None if model.long_after is None else int(n > model.long_after)


@pytest.mark.parametrize("case", list(CASES))
def test_every_architecture_in_f32(device: Any, tmp_path: Path, case: str) -> None:
    """Products are exact to f32; attention and its cache keep halves, an error that grows from block to block."""
    arch, options = CASES[case]
    both = Both(tmp_path, arch, **options)
    ids = ids_of()
    v = variant_of(both.model, len(ids))
    worst = both.worst(batch_of(ids[:33], variant=v))
    for i in range(33, 40):
        worst = max(worst, both.worst(batch_of(ids[i : i + 1], start=i, variant=v)))
    both.tape.close()
    print(case, worst)
    assert worst <= (4e-2 if options.get("n_layer", 0) > 40 else 2e-2)


@pytest.mark.parametrize("type_name", FORMATS)
def test_every_format(device: Any, tmp_path: Path, type_name: str) -> None:
    both = Both(tmp_path, "llama", type=type_name)
    ids = ids_of(60)
    worst = [both.worst(batch_of(ids[:33])), both.worst(batch_of(ids[33:41], 33)), both.worst(batch_of(ids[41:42], 41))]
    both.tape.close()
    print(type_name, worst)
    assert max(worst) <= 0.15  # int8 activations; logits have a spread of about 1


@pytest.mark.parametrize("n", [1, 2, 8, 9, 31, 32, 33, 255, 257])
def test_token_counts_and_a_second_request(device: Any, tmp_path: Path, n: int) -> None:
    both = Both(tmp_path, "gemma3", n_layer=7, tied=True)
    ids = ids_of(n + 2)
    for _ in range(2):
        assert both.worst(batch_of(ids[:n])) <= 1e-2
        assert both.worst(batch_of(ids[n : n + 1], n)) <= 1e-2
        both.reference.reset()
    both.tape.close()


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
def test_quantised_caches(device: Any, tmp_path: Path, kv_type: str) -> None:
    both = Both(tmp_path, "llama", kv_type, n_embd=128)
    ids = ids_of(41)
    worst = [both.worst(batch_of(ids[:40])), both.worst(batch_of(ids[40:], 40))]
    both.tape.close()
    print(kv_type, worst)
    assert max(worst) <= (0.05 if kv_type == "q8_0" else 1.0)


def test_several_sequences(device: Any, tmp_path: Path) -> None:
    both = Both(tmp_path, "qwen3")
    a, b = ids_of(20, 1), ids_of(9, 2)
    mixed = Batch(
        tokens=np.concatenate([a, b]).astype(np.int32),
        positions=np.concatenate([np.arange(20), np.arange(9)]).astype(np.int32),
        sequences=np.repeat([2, 0], [20, 9]).astype(np.int32),
        outputs=np.array([3, 19, 28], np.int32),
    )
    assert both.worst(mixed) <= 1e-2
    both.tape.close()


def test_memory_is_given_back(device: Any, tmp_path: Path) -> None:
    free = []
    for _ in range(20):
        both = Both(tmp_path, "llama")
        both.worst(batch_of(ids_of(9)))
        both.tape.close()
        free.append(device.cuda.mem_get_info()[0])
    assert free[0] == free[-1]
