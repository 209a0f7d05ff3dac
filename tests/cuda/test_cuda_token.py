"""The step of one token as one kernel, against the reference set and against the same step as many launches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import CASES, ids_of
from running import batch_of, load
from test_cuda_models import FORMATS, MAX_OUTPUTS, MAX_PAGES, MAX_ROWS, variant_of
from tiny import write_tiny

from hybridkern.kernels.interface import Batch, Recorder
from hybridkern.kernels.reference import ReferenceSet

BLOCK_256 = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")


class Three:
    """A tiny model as one kernel, as many launches, and in the reference."""

    def __init__(self, folder: Path, arch: str, kv_type: str = "f16", **options: Any) -> None:
        from hybridkern.kernels.cuda import CudaSet

        self.model = load(write_tiny(folder / "tiny.gguf", arch, **options).path)
        r = Recorder()
        logits = self.model.record(r)
        self.reference = ReferenceSet(r.ops)
        self.one, self.many = (
            CudaSet().lower(
                r.ops, logits=logits, specs=self.model.kv_specs, kv_type=kv_type, n_pages=4 * MAX_PAGES, n_seq=4,
                max_pages=MAX_PAGES, max_rows=MAX_ROWS, max_outputs=MAX_OUTPUTS, one_kernel=one,
            )
            for one in (True, False)
        )  # fmt: skip
        assert self.one.graphs.why_many == "" and any(x.function.startswith("hk_token") for x in self.one.launches(1))
        self.table = np.arange(4 * MAX_PAGES, dtype=np.int32)[::-1].reshape(4, MAX_PAGES).copy()

    def step(self, batch: Batch) -> tuple[float, float]:
        """How far the kernel's logits are from the launches' and from the reference's."""
        got, same, want = self.one.run(batch, self.table), self.many.run(batch, self.table), self.reference.run(batch)
        assert np.isfinite(got.logits).all()
        assert np.array_equal(got.best, got.logits.argmax(1))
        x = got.logits.astype(np.float64)
        return float(np.abs(x - same.logits).max()), float(np.abs(x - want).max())

    def worst(self, ids: Any, prompt: int, sequence: int = 0) -> tuple[float, float]:
        """Of every token behind a prompt."""
        v = variant_of(self.model, len(ids))
        for at in range(0, prompt, MAX_ROWS):
            self.step(batch_of(ids[at : min(prompt, at + MAX_ROWS)], at, variant=v))
        far = [self.step(batch_of(ids[i : i + 1], i, variant=v)) for i in range(prompt, len(ids))]
        return max(x for x, _ in far), max(x for _, x in far)

    def close(self) -> None:
        self.one.close()
        self.many.close()


def checked(folder: Path, arch: str, prompt: int, n: int, allowed: float, **options: Any) -> None:
    three = Three(folder, arch, **options)
    launches, reference = three.worst(ids_of(n), prompt)
    three.close()
    print(launches, reference)
    assert launches <= 0.05 and reference <= allowed  # a sum's last bit may move an input by a step of int8


@pytest.mark.parametrize("case", list(CASES))
def test_every_architecture(device: Any, tmp_path: Path, case: str) -> None:
    arch, options = CASES[case]
    checked(tmp_path, arch, 33, 40, 1.0 if options.get("n_layer", 0) > 40 else 0.3, **options, type="Q8_0")


@pytest.mark.parametrize("type_name", [t for t in FORMATS if t not in ("F16", "BF16")])
def test_every_format(device: Any, tmp_path: Path, type_name: str) -> None:
    checked(tmp_path, "llama", 33, 40, 0.15, type=type_name)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_the_first_token(device: Any, tmp_path: Path, arch: str) -> None:
    checked(tmp_path, arch, 0, 3, 0.3, type="Q4_0", tied=True)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize(("heads", "dim"), [((4, 2), 64), ((16, 1), 128), ((4, 4), 256), ((6, 2), 96)])
def test_a_long_context(device: Any, tmp_path: Path, kv_type: str, heads: tuple[int, int], dim: int) -> None:
    options = {"n_head": heads[0], "n_head_kv": heads[1], "head_dim": dim, "type": "Q8_0", "n_embd": 256}
    checked(tmp_path, "qwen3", 700, 706, {"f16": 0.3, "q8_0": 0.3, "q4_0": 1.5}[kv_type], kv_type=kv_type, **options)


def test_a_window_in_a_long_context(device: Any, tmp_path: Path) -> None:
    checked(tmp_path, "gemma3", 600, 603, 0.3, type="Q8_0", n_layer=7, tied=True, window=300)
