"""Recorded models, run by the reference set, against forward passes written from the published definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forward import forward
from running import batch_of, load, reference
from tiny import ARCHITECTURES, N_VOCAB, write_tiny

TOLERANCE = 1e-9

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-mqa-tied": ("llama", {"n_head_kv": 1, "tied": True}),
    "llama-biases": ("llama", {"biases": True}),
    "llama-kv-array": ("llama", {"n_layer": 3, "n_head_kv": [4, 1, 2], "n_ff": [96, 64, 128]}),
    "llama-window": ("llama", {"window": 5}),
    "llama-partial-rotary": ("llama", {"rope_dims": 8}),
    "llama-linear": ("llama", {"scaling": "linear"}),
    "llama-llama3": ("llama", {"scaling": "llama3"}),
    "llama-yarn": ("llama", {"scaling": "yarn", "head_dim": 32}),
    "qwen2": ("qwen2", {}),
    "qwen2-yarn": ("qwen2", {"scaling": "yarn", "head_dim": 32, "tied": True}),
    "qwen3": ("qwen3", {}),
    "qwen3-yarn": ("qwen3", {"scaling": "yarn"}),
    "gemma2": ("gemma2", {"n_layer": 4, "tied": True}),
    "gemma3": ("gemma3", {"n_layer": 7, "tied": True}),
    "gemma3-linear": ("gemma3", {"n_layer": 7, "tied": True, "scaling": "linear", "factor": 8.0}),
    "phi3": ("phi3", {}),
    "phi3-window": ("phi3", {"window": 6}),
    "phi3-partial-rotary": ("phi3", {"rope_dims": 12, "tied": True}),
    "phi3-longrope": ("phi3", {"scaling": "longrope"}),
    "llama-q8_0": ("llama", {"type": "Q8_0"}),
    "gemma3-q4_k": ("gemma3", {"type": "Q4_K", "n_layer": 6}),
    "phi3-q6_k": ("phi3", {"type": "Q6_K"}),
}


def ids_of(n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, N_VOCAB, n)


@pytest.mark.parametrize("case", CASES)
def test_graph_equals_definition(case: str, tmp_path: Path) -> None:
    arch, options = CASES[case]
    tiny = write_tiny(tmp_path / "tiny.gguf", arch, **options)
    model = load(tiny.path)
    assert model.weights.unused == ()
    assert model.weights.tied == bool(options.get("tied"))
    # 40 tokens pass every window and LongRoPE's original context of 32; 30 stay below it.
    for n in (40, 30, 1):
        ids = ids_of(n)
        variant = None if model.long_after is None else int(n > model.long_after)
        got = reference(model).run(batch_of(ids, variant=variant))
        wanted = forward(tiny, ids)
        assert np.abs(wanted).max() > 0.5
        assert np.abs(got - wanted).max() <= TOLERANCE


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_token_by_token_and_interleaved_equal_whole(arch: str, tmp_path: Path) -> None:
    tiny = write_tiny(tmp_path / "tiny.gguf", arch, n_layer=6)
    run = reference(load(tiny.path))
    a, b = ids_of(20, 2), ids_of(20, 3)
    wanted_a, wanted_b = forward(tiny, a), forward(tiny, b)
    got = np.concatenate([run.run(batch_of(a[i : i + 1], i)) for i in range(7)])
    assert np.abs(got - wanted_a[:7]).max() <= TOLERANCE

    # The rest of a, and all of b from its start, with their rows interleaved in one step.
    rows = [(a[i], i, 0) for i in range(7, 20)] + [(b[i], i, 5) for i in range(20)]
    rows = [rows[i] for i in sorted(range(len(rows)), key=lambda i: (rows[i][1] * 7919 % 31, i))]
    step = batch_of([r[0] for r in rows])
    step.positions = np.array([r[1] for r in rows], np.int32)
    step.sequences = np.array([r[2] for r in rows], np.int32)
    step.outputs = np.array([3, 8, 21], np.int32)
    got = run.run(step)
    for out, row in zip(got, step.outputs, strict=True):
        _, position, sequence = rows[row]
        wanted = (wanted_a if sequence == 0 else wanted_b)[position]
        assert np.abs(out - wanted).max() <= TOLERANCE


def test_window_reaches_exactly_window_minus_one_tokens_back(tmp_path: Path) -> None:
    window, n = 5, 12
    tiny = write_tiny(tmp_path / "tiny.gguf", "llama", n_layer=1, window=window)
    run = reference(load(tiny.path))
    ids = ids_of(n)

    def last(changed: int | None) -> np.ndarray:
        run.reset()
        other = ids.copy()
        if changed is not None:
            other[changed] = (other[changed] + 1) % N_VOCAB
        return run.run(batch_of(other, outputs=[n - 1]))

    assert np.array_equal(last(n - 1 - window), last(None))
    assert not np.array_equal(last(n - window), last(None))


def test_only_wanted_rows_are_computed(tmp_path: Path) -> None:
    tiny = write_tiny(tmp_path / "tiny.gguf", "qwen3")
    run = reference(load(tiny.path))
    ids = ids_of(9)
    assert run.run(batch_of(ids, outputs=[2, 8])).shape == (2, tiny.n_vocab)
    assert np.abs(run.run(batch_of(ids, outputs=[2, 8])) - forward(tiny, ids)[[2, 8]]).max() <= TOLERANCE


def test_quantised_activations_stay_close(tmp_path: Path) -> None:
    tiny = write_tiny(tmp_path / "tiny.gguf", "llama", type="Q8_0")
    ids = ids_of(16)
    exact = forward(tiny, ids)
    got = reference(load(tiny.path), quantize_activations=True).run(batch_of(ids))
    distance = np.abs(got - exact).max()
    assert 1e-6 < distance < 0.1
