"""Importance from models that a GPU computes, or a part of them, against the float64 forward pass and the CPU's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from assignments import RULES, STREAMED
from cases import ids_of
from cuda_device import Gpu
from running import batch_of, load
from tiny import write_tiny

import hybridkern as hk
from hybridkern.kernels.cuda import launches
from hybridkern.kernels.interface import Recorder
from hybridkern.kernels.reference import ReferenceSet
from hybridkern.model import LoadedModel
from hybridkern.plan.assignment import Assignment
from hybridkern.runtime.cpu_part import CpuPart
from hybridkern.runtime.engine import Engine
from hybridkern.runtime.observing import Observed, observe_text
from hybridkern.runtime.perplexity import cut, measure
from real_models import smollm2_135m

STEPS = (40, 1, 33, 2, 8, 60)
IDS = ids_of(sum(STEPS))
Sums = dict[str, npt.NDArray[np.float64]]
TEXT = (Path(__file__).parents[1] / "golden" / "text.txt").read_text()


@pytest.mark.parametrize("width", [4, 33, 4096])
def test_the_kernel(gpu: Gpu, width: int) -> None:
    """Twice, tokens and outputs, fewer rows than the buffer has."""
    rows = 300
    x = (np.random.default_rng(0).standard_normal((rows, width + 4)) * 3).astype(np.float32)
    for n, outputs in ((300, False), (7, True), (1, False)):
        step = gpu.step(n if not outputs else rows, n if outputs else 0)
        sums = gpu.put(np.arange(width + 1.0))
        fields = {"x": gpu.put(x), "x_stride": width + 4, "sums": sums, "rows_are_outputs": outputs}
        gpu.run(*[launches.observe(step, width, **fields)] * 2)
        want = np.arange(width + 1.0)
        want[:-1] += 2 * (x[:n, :width].astype(np.float64) ** 2).sum(0)
        want[-1] += 2 * n
        assert np.allclose(gpu.get(sums, width + 1, np.float64), want, rtol=1e-13)


def observed(model: LoadedModel, assignment: Assignment | None, **options: Any) -> Sums:
    """Of the same tokens in the same steps."""
    made = Observed(head=True)
    tapped = made.tap(model)
    options = {"n_ctx": 256, "threads": 2, "n_seq": 2, "n_kv_pages": 8, "factories": {"cuda1": CpuPart}} | options
    with Engine(tapped, assignment=assignment, **options) as e:
        s = e.new_sequence()
        for end, n in zip(np.cumsum(STEPS), STEPS, strict=True):
            e.evaluate(s, IDS[end - n : end])
        for part in e.parts.values():
            part.collect()
    made.check()
    return made.sums


def worst(got: Sums, want: Sums) -> float:
    """The largest error of a column's mean square, of the matrix' largest or of its own where that is not small."""
    assert list(got) == list(want)
    found = 0.0
    for name, values in want.items():
        assert got[name][-1] == values[-1], name
        scale = np.maximum(values[:-1], 1e-2 * values[:-1].max())
        found = max(found, float((np.abs(got[name] - values)[:-1] / scale).max()))
    return found


@pytest.mark.parametrize("arch", ["llama", "gemma3", "phi3"])
def test_a_whole_model_against_float64(device: Any, tmp_path: Path, arch: str) -> None:
    model = load(write_tiny(tmp_path / "t.gguf", arch, n_layer=3, context=256).path)
    wanted = Observed(head=True)
    recorder = Recorder()
    wanted.tap(model).record(recorder)
    ends = np.cumsum(STEPS) - 1
    ReferenceSet(recorder.ops).run(batch_of(IDS, outputs=ends))
    error = worst(observed(model, None, device=0), wanted.sums)
    print(arch, error)
    assert error <= 2e-3


@pytest.mark.parametrize("kind", ["F32", "Q4_K"])
def test_every_rule_and_streamed_blocks(device: Any, tmp_path: Path, kind: str) -> None:
    """As far from the CPU's as what is rounded to int8 there, and to halves here, lets it be."""
    wide = {"n_embd": 256, "n_ff": 256, "n_layer": 3, "context": 256}
    model = load(write_tiny(tmp_path / "t.gguf", "llama", type=kind, **wide).path)
    want, errors = observed(model, None), {}
    errors["whole"] = worst(observed(model, None, device=0), want)
    for name, rule in {**RULES, **STREAMED}.items():
        errors[name] = worst(observed(model, rule(model)), want)
    print(kind, errors)
    assert max(errors.values()) <= (2e-3 if kind == "F32" else 0.1)


@pytest.mark.real_model
def test_a_real_model_in_importance_and_perplexity(device: Any) -> None:
    """Of SmolLM2 135M, whole and divided: importance within 1 % of the CPU's in the mean, perplexity within 0.5 %."""
    path = smollm2_135m()
    if path is None:
        pytest.skip("the model's package is not installed")
    found: dict[str, tuple[Sums, float]] = {}
    for name, options in {
        "cpu": {"n_gpu_layers": 0, "device": None},
        "gpu": {"n_gpu_layers": "all"},
        "blocks": {"n_gpu_layers": 15},
        "ffn": {"n_gpu_layers": "all", "n_cpu_ffn": 30},
    }.items():
        made = Observed()
        with hk.load(path, n_ctx=128, tap=made.tap, **options) as model:
            chunks = cut(model.tokenize(TEXT), 128)
            observe_text(model, chunks)
            made.check()
            sums = {k: v.copy() for k, v in made.sums.items()}
            found[name] = sums, measure(model, chunks).perplexity[0]
    want, ppl = found["cpu"]
    for name, (sums, other) in found.items():
        far = [float(np.abs(v - want[k])[:-1].sum() / want[k][:-1].sum()) for k, v in sums.items()]
        print(f"{name}: perplexity {other:.4f}, importance differs by {np.mean(far):.5f}, at most {max(far):.5f}")
        assert np.mean(far) <= 1e-2
        assert other == pytest.approx(ppl, rel=5e-3)
