"""CudaSet: the kernel set of one GPU, as the engine uses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkern.kernels import _cpu
from hybridkern.kernels.interface import Batch, Buffer, Op
from hybridkern.kernels.streamed import Streamed, key_of

from .device import Device
from .driver import Memory
from .graphs import Graphs, Piece
from .holdings import Holdings, weights_of
from .launches import Launch
from .slots import DeviceSlot

Table = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Result:
    """Logits float32 [outputs][n_vocab]; best: the likeliest token of each (-1: none), logprob: its log-probability."""

    logits: npt.NDArray[np.float32]
    best: npt.NDArray[np.int32]
    logprob: npt.NDArray[np.float32]


class CudaSet:
    """Kernels of one GPU. Raises KernelError where it cannot be used."""

    def __init__(self, device: int = 0) -> None:
        self.device = Device.get(device)

    def hold(self, ops: Sequence[Op], **options: Any) -> Holdings:
        """Uploads weights and allocates what steps need; see Holdings.prepare."""
        made = Holdings(self.device)
        try:
            self.device.run(made.prepare, ops, **options)
        except BaseException:
            made.close()
            raise
        return made

    def lower(
        self,
        ops: Sequence[Op],
        *,
        logits: Buffer,
        streamed: Streamed | None = None,
        one_kernel: bool = True,
        **options: Any,
    ) -> CudaTape:
        """A whole model, ready to run. streamed: matrices that every step brings from main memory; one_kernel: see
        Graphs."""
        held = [w for w in weights_of(ops) if streamed is None or key_of(w) not in streamed.sources]
        holdings = self.hold(ops, logits=logits, n_vocab=logits.width, weights=held, **options)
        try:
            return CudaTape(holdings, self.device.run(_graphs, holdings, ops, streamed, one_kernel))
        except BaseException:
            holdings.close()
            raise

    def live_bytes(self) -> int:
        """Device memory of this process that is allocated, once what was asked of the device before is done."""
        return self.device.run(lambda: Memory.live)

    def describe(self) -> str:
        """The device."""
        major, minor = self.device.capability
        return (
            f"CUDA kernel set on GPU {self.device.number}: {self.device.name}, sm_{major}{minor}, "
            f"{self.device.processors} multiprocessors"
        )


def _graphs(holdings: Holdings, ops: Sequence[Op], streamed: Streamed | None, one_kernel: bool) -> Graphs:
    brings = None if streamed is None else holdings.stream(streamed)
    return Graphs(holdings, [Piece(ops)], brings=brings, one_kernel=one_kernel)


class CudaTape:
    """A whole model on the device, without the engine: for tests and benchmarks."""

    def __init__(self, holdings: Holdings, graphs: Graphs) -> None:
        self.holdings, self.graphs = holdings, graphs
        self._own: list[DeviceSlot] = []

    def launches(self, n: int) -> list[Launch]:
        """Of the step class that serves n tokens."""
        return self.graphs.launches(n)

    def run(self, batch: Batch, table: Table) -> Result:
        """One step; table: page ids int32 [n_seq][max_pages]."""
        own, n, m = self._filled(batch), len(batch.tokens), len(batch.outputs)
        program = _cpu.Program(table.ctypes.data, self.holdings.n_seq).launch(self.graphs.native)
        program.run(own.native, n, m, 1, True)
        best, logprob = own.best[:m].copy(), (own.best_value[:m] - own.best_lse[:m]).astype(np.float32)
        program.run(own.native, n, m, 1, False)
        return Result(own.rows(m).copy(), best, logprob)

    def start(self, batch: Batch, table: Table) -> None:
        """Queue a step without results, and do not wait."""
        own = self._filled(batch)
        self.graphs.native.queue(own.native, table.ctypes.data, len(batch.tokens), len(batch.outputs))

    def wait(self) -> None:
        """Until everything queued is done."""
        self.holdings.wait()

    def close(self) -> None:
        """Give the device's memory back; a second call does nothing. Nothing may be running."""
        self._own.clear()
        self.holdings.close()

    def _filled(self, batch: Batch) -> DeviceSlot:
        self.holdings.require_open()
        if not self._own:
            self._own = [self.holdings.slot(), self.holdings.slot()]
        self._own.reverse()  # the other one may still be under way
        self._own[0].fill(batch)
        return self._own[0]
