"""Runs a GGUF file through the model layer and the reference set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hybridkern.gguf import GGUFFile
from hybridkern.kernels.interface import Batch, Recorder
from hybridkern.kernels.reference import ReferenceSet
from hybridkern.model import LoadedModel


def batch_of(
    ids: Sequence[int] | npt.NDArray[np.integer],
    start: int = 0,
    sequence: int = 0,
    outputs: Sequence[int] | None = None,
    variant: int | None = None,
) -> Batch:
    """One sequence's tokens from position `start` on; outputs: all rows unless told."""
    n = len(ids)
    return Batch(
        tokens=np.asarray(ids, np.int32),
        positions=np.arange(start, start + n, dtype=np.int32),
        sequences=np.full(n, sequence, np.int32),
        outputs=np.arange(n, dtype=np.int32) if outputs is None else np.asarray(outputs, np.int32),
        variants=None if variant is None else np.full(n, variant, np.int32),
    )


def load(path: Path) -> LoadedModel:
    """The model of a file (which stays open through the views that the weights hold)."""
    return LoadedModel.from_gguf(GGUFFile.open(path))


def reference(model: LoadedModel, **options: bool) -> ReferenceSet:
    """A reference set that replays the model."""
    recorder = Recorder()
    model.record(recorder)
    return ReferenceSet(recorder.ops, **options)
