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
    from .cuda_set import CudaTape

FIELDS = ("counts", "tokens", "positions", "sequences", "variants", "outputs")  # as in hk_segment.h
CHOSEN_RING = 8  # as in hk_segment.h
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


class DeviceSlot:
    """As runtime.slots.StepSlot, for steps of a CudaTape. Made in the device's thread."""

    def __init__(self, tape: CudaTape, max_rows: int, max_outputs: int) -> None:
        ints = np.int32
        self.tokens, self.positions, self.sequences, self.variants = (np.zeros(max_rows, ints) for _ in range(4))
        self.outputs = np.zeros(max_outputs, ints)
        self.best, self.bad = np.zeros(max_outputs, ints), np.zeros(max_outputs, ints)
        self.best_value, self.best_lse = np.zeros(max_outputs, np.float32), np.zeros(max_outputs, np.float64)
        self._n_vocab, self._stride = tape.logits.width, tape.logits_stride
        self._max_rows, self._max_outputs = max_rows, max_outputs
        # A small step may run in a larger class, so the inputs are those of the largest.
        n_few = min(max_outputs, FEW_OUTPUTS)
        _, total = input_offsets(tape.max_rows, tape.max_outputs)
        sizes = (4 * total, 4 * tape.n_seq * tape.max_pages, 4 * n_few * self._stride)
        locked = HostMemory(sum(-(-size // 64) * 64 for size in sizes), tape.device.later)
        at = []
        end = locked.address
        for size in sizes:
            at.append(end)
            end += -(-size // 64) * 64
        self._locked: HostMemory | None = locked
        few = locked.view(at[2] - locked.address, sizes[2]).view(np.float32)
        self._few: npt.NDArray[np.float32] = few.reshape(n_few, self._stride)
        self._memory = _cpu.Memory(max_outputs * self._stride * 4 if max_outputs > n_few else 4, True)
        self._done = Event(timed=False)
        arrays = ("tokens", "positions", "sequences", "variants", "outputs", "best", "bad", "best_value", "best_lse")
        addresses = {name: getattr(self, name).ctypes.data for name in arrays}
        self.native = _cpu.Slot(**addresses, pages=0, logits=self._memory.address)
        self.native.attach(inputs=at[0], pages=at[1], few=at[2], n_few=n_few, done=self._done.handle)

    def rows(self, m: int) -> npt.NDArray[np.float32]:
        """The logits of the last step, which had m outputs."""
        if m <= len(self._few):
            return self._few[:m, : self._n_vocab]
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
        self._done.destroy()
        self._few, self._locked = np.zeros((0, self._stride), np.float32), None
