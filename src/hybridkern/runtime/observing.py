"""Importance matrices from running text: what every product is given, squared and summed over the tokens.

A tapped model is recorded with an `observe` in front of each product, whose sums are arrays of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hybridkern.errors import HybridKernError
from hybridkern.kernels.interface import Buffer, Recorder, Weight
from hybridkern.model import LoadedModel

if TYPE_CHECKING:
    from .model_api import Model

Sums = npt.NDArray[np.float64]


@dataclass
class Observed:
    """sums: tensor name -> float64 [columns + 1], the last being the number of rows. Tensors that share their input
    share the array. head: whether the output matrix is observed too."""

    head: bool = False
    sums: dict[str, Sums] = field(default_factory=dict)

    def tap(self, loaded: LoadedModel) -> LoadedModel:
        """The same model, recorded with taps (the `tap` of `load`)."""
        parts = {f.name: getattr(loaded, f.name) for f in fields(loaded)}
        return _Tapped(**parts, observed=self)

    def check(self) -> None:
        """Raise HybridKernError where a product has been given infinities or NaN, or nothing at all."""
        for name, sums in self.sums.items():
            if not np.isfinite(sums).all():
                raise HybridKernError(f"the input of {name!r} was infinite or NaN: the model's weights are damaged")
            if sums[-1] == 0:
                raise HybridKernError(f"the input of {name!r} was never computed: no text was run")


@dataclass(frozen=True, eq=False)
class _Tapped(LoadedModel):
    """A model that observes its products."""

    observed: Observed = field(default_factory=Observed)

    def record(self, r: Recorder) -> Buffer:
        """The model's own operations, with taps between them."""
        return super().record(_TapRecorder(r, self.observed, None if self.observed.head else self.weights.output))


class _TapRecorder(Recorder):
    """Records into another recorder. Consecutive products of one input are observed once, and stay one group."""

    def __init__(self, inner: Recorder, observed: Observed, head: Weight | None) -> None:
        self.ops, self.buffers = inner.ops, inner.buffers
        self._sums, self._head = observed.sums, head
        self._last: tuple[Buffer, Sums] | None = None

    def _record(self, kind: str, out: Any, *args: Any, **params: Any) -> None:
        if kind == "matmul" and args[1] is not self._head:
            self._observe(*args[:2])
        elif kind != "observe":
            self._last = None
        super()._record(kind, out, *args, **params)

    def _observe(self, x: Buffer, w: Weight) -> None:
        if self._last is None or self._last[0] is not x:
            sums = self._sums.setdefault(w.name, np.zeros(x.width + 1))  # the same for a plan and for the engine
            self.observe(w.name, x, sums)
            self._last = x, sums
        self._sums[w.name] = self._last[1]


def observe_text(model: Model, chunks: Sequence[Sequence[int]], heard: Callable[[int], None] | None = None) -> None:
    """Run chunks of tokens, each from an empty context, its first token BOS where the vocabulary has one in front of
    texts. heard: called with the number of chunks that are done."""
    bos = model.vocabulary.bos_id if model.vocabulary.add_bos else None
    for i, chunk in enumerate(chunks):
        ids = list(chunk) if bos is None else [bos, *chunk[1:]]
        model.logits(ids, rows=[-1])
        if heard is not None:
            heard(i + 1)
    with model.turn:
        for part in model.engine.parts.values():
            part.collect()
