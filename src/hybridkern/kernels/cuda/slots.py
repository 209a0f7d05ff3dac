"""Step slots for a GPU: NumPy arrays that Python fills, and page-locked memory that the device copies from and to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hybridkern.errors import ArgumentError
from hybridkern.kernels import _cpu
from hybridkern.kernels.interface import Batch

from .driver import Event, HostMemory
from .launches import TOPK_MOST

if TYPE_CHECKING:
    from .holdings import Holdings

FIELDS = ("counts", "tokens", "positions", "sequences", "variants", "outputs")  # as in hk_graphs.h
CHOSEN_RING = 8  # as in hk_graphs.h
FEW_OUTPUTS = 8  # of which logits come back to page-locked memory
_ALIGN = 16  # int32 values


def input_offsets(rows: int, outputs: int) -> tuple[list[int], int]:
    """Where the inputs of a step class begin, and how long they are together, in int32."""
    sizes = (2, rows, rows, rows, rows, outputs)
    at, end = [], 0
    for size in sizes:
        at.append(end)
        end += -(-size // _ALIGN) * _ALIGN
    return at, end


class TopTokens:
    """The likeliest tokens of a row, as a graph leaves them: ids int32 and logits float32, sorted, and (best logit, log
    of the sum of the exponentials of all). Where no token can be chosen, the first id is -1."""

    def __init__(self, locked: HostMemory) -> None:
        self.ids = locked.view(0, 4 * TOPK_MOST).view(np.int32)
        self.values = locked.view(4 * TOPK_MOST, 4 * TOPK_MOST).view(np.float32)
        self.total = locked.view(8 * TOPK_MOST, 8).view(np.float32)
        self.addresses = tuple(locked.address + at for at in (0, 4 * TOPK_MOST, 8 * TOPK_MOST))


def _beside(sizes: tuple[int, ...]) -> tuple[list[int], int]:
    """Where things of so many bytes lie one behind the other, and how long they are together."""
    at, end = [], 0
    for size in sizes:
        at.append(end)
        end += -(-size // 64) * 64
    return at, end


class DeviceMemory:
    """What a slot needs for steps on a GPU: page-locked memory, also of n_few rows of logits, and an event. Made in the
    device's thread."""

    def __init__(self, holdings: Holdings, native: _cpu.Slot, n_few: int) -> None:
        # A small step may run in a larger class, so the inputs are those of the largest.
        _, total = input_offsets(holdings.max_rows, holdings.max_outputs)
        stride = holdings.logits_stride
        sizes = (4 * total, 4 * holdings.n_seq * holdings.max_pages, 4 * n_few * stride)
        at, nbytes = _beside(sizes)
        self._locked: HostMemory | None = HostMemory(nbytes, holdings.device.later)
        self.few: npt.NDArray[np.float32] = self._locked.view(at[2], sizes[2]).view(np.float32).reshape(n_few, stride)
        self._done = Event(timed=False)
        inputs, pages, few = (self._locked.address + x for x in at)
        native.attach(holdings.index, inputs=inputs, pages=pages, few=few, n_few=n_few, done=self._done.handle)

    def destroy(self) -> None:
        """Give everything back; the page-locked memory once no view of logits is left."""
        self._done.destroy()
        self.few, self._locked = self.few[:0].copy(), None


class DeviceSlot:
    """As runtime.slots.StepSlot, for steps whose logits a GPU makes. Made in the device's thread."""

    def __init__(self, holdings: Holdings, max_rows: int, max_outputs: int | None = None) -> None:
        ints, max_outputs = np.int32, max_outputs or holdings.max_outputs
        self.tokens, self.positions, self.sequences, self.variants = (np.zeros(max_rows, ints) for _ in range(4))
        self.outputs = np.zeros(max_outputs, ints)
        self.best, self.bad = np.zeros(max_outputs, ints), np.zeros(max_outputs, ints)
        self.best_value, self.best_lse = np.zeros(max_outputs, np.float32), np.zeros(max_outputs, np.float64)
        self.pages = np.zeros((holdings.n_seq, holdings.max_pages), ints)  # as parts on the CPU read them
        self._n_vocab, self._stride = holdings.n_vocab, holdings.logits_stride
        self._max_rows, self._max_outputs = max_rows, max_outputs
        n_few = min(max_outputs, FEW_OUTPUTS)
        self._memory = _cpu.Memory(max_outputs * self._stride * 4 if max_outputs > n_few else 4, True)
        arrays = ("tokens", "positions", "sequences", "variants", "outputs", "best", "bad", "best_value", "best_lse")
        addresses = {name: getattr(self, name).ctypes.data for name in (*arrays, "pages")}
        self.native = _cpu.Slot(**addresses, logits=self._memory.address)
        self._device = DeviceMemory(holdings, self.native, n_few)

    def rows(self, m: int) -> npt.NDArray[np.float32]:
        """The logits of the last step, which had m outputs."""
        if m <= len(self._device.few):
            return self._device.few[:m, : self._n_vocab]
        many = np.frombuffer(self._memory, np.float32, m * self._stride).reshape(m, self._stride)
        return many[:, : self._n_vocab]

    def fill(self, batch: Batch) -> None:
        """Take over a batch as it is."""
        n, m = len(batch.tokens), len(batch.outputs)
        if not 1 <= n <= self._max_rows or m > self._max_outputs:
            most = f"{self._max_rows} and {self._max_outputs}"
            raise ArgumentError(f"a step of {n} tokens and {m} outputs; it can have {most}")
        self.tokens[:n], self.positions[:n], self.sequences[:n] = batch.tokens, batch.positions, batch.sequences
        self.variants[:n] = 0 if batch.variants is None else batch.variants
        self.outputs[:m] = batch.outputs

    def destroy(self) -> None:
        """Give everything back; the page-locked memory once no view of logits is left."""
        self._device.destroy()
