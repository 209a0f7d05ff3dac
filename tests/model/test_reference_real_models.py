"""The reference set on the two real models against the golden logits of an independent engine (tests/golden)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from running import batch_of, load, reference

import real_models

GOLDEN = Path(__file__).parents[1] / "golden"
CHUNK = 128
MODELS = {"gemma3-270m": real_models.gemma3_270m, "smollm2-135m": real_models.smollm2_135m}


@pytest.mark.real_model
@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_independent_engine(name: str) -> None:
    path = MODELS[name]()
    if path is None:
        pytest.skip(f"{name} is not installed, see tests/real_models.py")
    golden = np.load(GOLDEN / f"logits_{name}.npz")
    ids = golden["ids"][:-1]
    run = reference(load(path))
    divergences, same = [], []
    for start in range(0, len(ids), CHUNK):
        rows = slice(start, start + CHUNK)
        logits = run.run(batch_of(ids[rows], start))
        top = golden["top_ids"][rows]
        wanted = golden["top_logits"][rows] - golden["log_sum_exp"][rows, None]
        log_sum_exp = logits.max(1) + np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1))
        got = np.take_along_axis(logits, top, 1) - log_sum_exp[:, None]
        # The 32 largest, and all others as one class: a lower bound of the divergence.
        p, q = np.exp(wanted), np.exp(got)
        rest_p, rest_q = np.maximum(1 - p.sum(1), 1e-12), np.maximum(1 - q.sum(1), 1e-12)
        divergences.append((p * (wanted - got)).sum(1) + rest_p * np.log(rest_p / rest_q))
        sure = wanted[:, 0] - wanted[:, 1] > 0.2
        same.append((logits.argmax(1) == top[:, 0])[sure])
    divergence, same_top = np.concatenate(divergences), np.concatenate(same)
    print(f"{name}: mean divergence {divergence.mean():.2e}, largest {divergence.max():.2e}, {len(same_top)} sure rows")
    assert len(divergence) >= 512 and len(same_top) >= 256
    assert divergence.mean() <= 1e-6
    assert same_top.all()
