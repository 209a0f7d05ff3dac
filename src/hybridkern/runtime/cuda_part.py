"""The part of a model that a GPU computes, with all that belongs to it in the GPU's memory."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import partial
from typing import Any

from hybridkern.errors import ArgumentError, KernelError, OutOfMemoryError
from hybridkern.kernels import _cpu
from hybridkern.kernels.cuda import CudaSet
from hybridkern.kernels.cuda.cache_layout import KV_TYPES
from hybridkern.kernels.cuda.graphs import Crossing, Graphs, Piece
from hybridkern.kernels.cuda.holdings import Holdings
from hybridkern.kernels.cuda.stream import WeightStream
from hybridkern.kernels.interface import Buffer, Weight
from hybridkern.kernels.streamed import HostSource, Streamed
from hybridkern.plan.division import Command, Receive, Segment

from .kv_cache import PAGE
from .link import Link
from .parts import Request
from .slots import Slot


def _collected(cuda: CudaSet) -> bool:
    """Frees what nobody can reach any more: models refer to themselves, and only memory of the GPU is short."""
    before = cuda.live_bytes()
    gc.collect()
    return cuda.live_bytes() < before


class CudaPart:
    """On the GPU that the device's name says: "cuda0", "cuda1", ..."""

    def __init__(self, request: Request) -> None:
        r, sizes = request, request.sizes
        self.device, self._sizes, self._has_cache = r.device, sizes, bool(r.specs)
        if self._has_cache and sizes.kv_type not in KV_TYPES:
            raise ArgumentError(f"kv_type {sizes.kv_type!r}: a cache on the GPU is {', '.join(KV_TYPES)}")
        number = r.device.removeprefix("cuda")
        if not number.isdecimal():
            raise ArgumentError(f"there is no device {r.device!r}: devices are called cpu, cuda0, cuda1, ...")
        self._set = CudaSet(int(number))
        hold = partial(
            self._set.hold,
            r.ops,
            logits=r.logits,
            n_vocab=sizes.n_vocab,
            specs=r.specs,
            kv_type=sizes.kv_type if self._has_cache else "f16",
            n_pages=sizes.n_pages,
            n_seq=sizes.n_seq,
            max_pages=sizes.max_pages,
            max_rows=sizes.max_rows,
            max_outputs=sizes.max_outputs,
            progress=r.progress,
            index=r.index,
        )
        try:
            self._holdings: Holdings = hold()
        except OutOfMemoryError:
            if not _collected(self._set):
                raise
            self._holdings = hold()
        self.pages, self.gpu = self._holdings, self._set.device.name
        self.classes: Sequence[int] = self._holdings.classes
        self.mapped = self._set.device.mapped
        self._graphs: list[Graphs] = []
        self._stream: WeightStream | None = None

    def source(self, w: Weight) -> HostSource:
        """No other device reads the memory of a GPU."""
        raise KernelError(f"{w.name} lies on {self.device}: it cannot be streamed from there")

    def stream(self, streamed: Streamed) -> None:
        """Takes these matrices from main memory in every step of the programs for many tokens that are prepared next;
        the other programs find the last blocks where such a step leaves them."""
        self._stream = self._set.device.run(self._holdings.stream, streamed)

    def refill(self) -> None:
        """Brings what a step that streams leaves, where none has ended well since the last."""
        self._set.device.run(self._holdings.refill)

    def prepare(self, commands: Sequence[Command], link: Link, fewest: int = 1) -> CudaRunning:
        """Captures the graphs of a program."""
        pieces: list[Piece | Crossing] = []
        for c in commands:
            if isinstance(c, Segment):
                pieces.append(Piece(c.ops, c.keep))
            else:
                parts = list(zip(c.transfer.parts, link.linked(c.transfer), strict=True))
                flag = link.flag(c.transfer)
                pieces.append(Crossing(isinstance(c, Receive), parts, flag, link.abort))
        made = self._set.device.run(
            Graphs, self._holdings, pieces, lambda rows: rows <= link.linked_rows,
            brings=self._stream if fewest > 1 else None, fewest=fewest,
        )  # fmt: skip
        self._graphs.append(made)
        return CudaRunning(self._holdings, made)

    def locked(self, nbytes: int) -> Any:
        """Page-locked memory that every GPU reaches."""
        return self._set.device.run(self._holdings.locked, nbytes)

    def slot(self, max_rows: int | None = None, max_outputs: int | None = None) -> Slot:
        """A slot for steps of at most so many tokens and outputs."""
        return self._holdings.slot(max_rows, max_outputs)

    def attach(self, slot: Slot) -> None:
        """Adds this GPU's inputs to a slot."""
        self._holdings.attach(slot.native)

    def collect(self) -> None:
        """What was observed joins the arrays of the host."""
        self._holdings.collect()

    @property
    def nbytes(self) -> dict[str, int]:
        """Device memory by purpose."""
        return self._holdings.nbytes

    def describe(self) -> list[str]:
        """Device, memory to the byte, launches of a token."""
        s, used = self._sizes, self.nbytes
        cache = f"KV cache: {s.kv_type}, {s.n_pages} pages of {PAGE} tokens and {self.pages.page_bytes} bytes each"
        launches = sum(len(g.launches(1)) for g in self._graphs[:1])
        return [
            self._set.describe(),
            *(f"GPU memory, {what}: {n} bytes ({n / 2**20:.1f} MiB)" for what, n in sorted(used.items())),
            f"GPU memory: {sum(used.values())} bytes in all",
            *([cache] if self._has_cache else []),
            f"graphs: {launches} launches for a token, steps of {s.max_rows} tokens at most",
            *(g.describe() for g in self._graphs[:1]),
            *(self._stream.describe() if self._stream is not None else []),
        ]

    def close(self) -> None:
        """Give the GPU's memory back."""
        self._holdings.close()

    def __del__(self) -> None:
        holdings = getattr(self, "_holdings", None)
        if holdings is not None:
            holdings.close_later()


class CudaRunning:
    """The graphs of a program."""

    def __init__(self, holdings: Holdings, graphs: Graphs) -> None:
        self._holdings, self.graphs, self.top = holdings, graphs.native, graphs.top

    def run(self, program: _cpu.Program, k: int) -> None:
        """Adds a segment to the program."""
        program.launch(self.graphs, k)

    def end(self, b: Buffer) -> tuple[bool, int, int]:
        """Where a buffer lies."""
        return (False, *self._holdings.device.run(self._holdings.place.buffer, b))

    def event(self) -> int:
        """A new one, without a time."""
        return self._holdings.device.run(self._holdings.event)
