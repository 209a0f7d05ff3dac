"""Python's share of a greedy token stays small: on a fast device it is what limits the speed."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import hybridkern as hk

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))


def test_python_per_greedy_token(tmp_path):
    from tiny import write_tiny

    from python_overhead import TARGET_US, measure

    path = write_tiny(tmp_path / "long.gguf", "llama", context=1024).path
    with hk.load(path, threads=1) as model:
        outside, _ = measure(model, 400, 5)
    assert statistics.median(outside) <= TARGET_US, outside
