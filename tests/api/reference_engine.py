"""An engine over the float64 yardstick, with the interface of `hybridkern.runtime.engine.Engine` and a record of calls.

It lets the tests of sessions and generation count what was computed, and fail a call on purpose.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybridkern.kernels.interface import Batch, Recorder
from hybridkern.kernels.reference import ReferenceSet


class ReferenceEngine:
    """Every step is interpreted in NumPy. `evaluated` counts tokens, `live` holds the sequences in use."""

    def __init__(self, model: Any, *rest: Any, **options: Any) -> None:
        recorder = Recorder()
        model.record(recorder)
        self.set = ReferenceSet(recorder.ops)
        self.options = options
        self.live: dict[int, int] = {}
        self.evaluated: list[int] = []
        self.variants: list[int] = []
        self.before_step: Callable[[], None] = lambda: None
        self.closed = False
        self._next = 0

    def new_sequence(self) -> int:
        self._next += 1
        self.live[self._next] = 0
        return self._next

    def fork(self, sequence: int) -> int:
        made = self.new_sequence()
        self.live[made] = self.live[sequence]
        for (block, owner), cache in list(self.set._caches.items()):
            if owner == sequence:
                self.set._caches[block, made] = copy.deepcopy(cache)
        return made

    def truncate(self, sequence: int, length: int) -> None:
        assert length >= 0
        self.live[sequence] = length

    def free(self, sequence: int) -> None:
        del self.live[sequence]

    def evaluate(
        self, sequence: int, tokens: Sequence[int], rows: Sequence[int] | None = None, variant: int = 0
    ) -> np.ndarray:
        n, start = len(tokens), self.live[sequence]
        self.evaluated.append(n)
        self.variants.append(variant)
        self.live[sequence] = start + n  # before the fault: a torn step has written part of the cache
        self.before_step()
        outputs = range(n) if rows is None else rows
        batch = Batch(
            np.array(tokens, np.int32),
            np.arange(start, start + n, dtype=np.int32),
            np.full(n, sequence, np.int32),
            np.array(outputs, np.int32),
            np.full(n, variant, np.int32),
        )
        return self.set.run(batch).astype(np.float32)

    def greedy(self, sequence: int, tokens: Sequence[int], variant: int = 0) -> tuple[int, float]:
        row = self.evaluate(sequence, tokens, [len(tokens) - 1], variant)[0].astype(np.float64)
        best = int(row.argmax())
        return best, float(row[best] - row.max() - np.log(np.exp(row - row.max()).sum()))

    def arm(self, *decoding: Any) -> None:
        """Nothing goes on by itself here."""

    def describe(self) -> str:
        return "the float64 yardstick"

    def close(self) -> None:
        self.closed = True
