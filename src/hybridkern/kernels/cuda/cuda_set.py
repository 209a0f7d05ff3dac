"""CudaSet: the kernel set of one GPU, as the engine uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkern.errors import KernelError
from hybridkern.kernels import _cpu
from hybridkern.kernels.interface import Batch, Buffer, KVSpec, Op

from .build import LaunchBuilder
from .device import Device
from .driver import Graph, HostMemory, Memory, Stream
from .fusion import Fusion
from .launches import FEW, TOPK_MOST, TOPK_WIDTH, Launch, decode_splits
from .placement import PAGE, DeviceCache, Placement, Progress
from .slots import CHOSEN_RING, FIELDS, DeviceSlot, TopTokens, input_offsets

Table = npt.NDArray[np.int32]
_CLASSES = (1, FEW, 32, 128, 512, 2048)


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

    def lower(self, ops: Sequence[Op], *, logits: Buffer, **options: Any) -> CudaTape:
        """Uploads the weights and allocates everything that steps need; see CudaTape."""
        tape = CudaTape(self.device, ops, logits)
        try:
            self.device.run(tape.prepare, **options)
        except BaseException:
            tape.close()
            raise
        return tape

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


class CudaTape:
    """A recorded model on the device: one graph per step class, all captured here, and the memory of its steps.

    `segment` runs its steps, on a stream of its own: others may be loading at the same time.
    """

    segment: _cpu.Segment

    def __init__(self, device: Device, ops: Sequence[Op], logits: Buffer) -> None:
        self.device, self._ops, self.logits = device, list(ops), logits
        self._graphs: list[Graph] = []
        self._launches: dict[int, list[Launch]] = {}
        self._slots: list[DeviceSlot] = []
        self._place: Placement | None = None
        self._stream: Stream | None = None
        self._own: list[DeviceSlot] = []
        self._results: list[HostMemory] = []  # where graphs leave the likeliest tokens
        self.top: TopTokens | None = None  # of the last step that asked for it

    def prepare(
        self,
        *,
        specs: Sequence[KVSpec],
        kv_type: str = "f16",
        n_pages: int,
        n_seq: int,
        max_pages: int,
        max_rows: int,
        max_outputs: int,
        progress: Progress | None = None,
    ) -> None:
        """In the device's thread. max_pages: of one sequence; max_rows, max_outputs: of one step."""
        d = self.device
        place = self._place = Placement(d.kernels, d.stream, max_rows, max_outputs)
        self.max_rows, self.max_outputs, self.n_seq, self.max_pages = max_rows, max_outputs, n_seq, max_pages
        weights = [op.args[0 if op.kind == "embed" else 1] for op in self._ops if op.kind in ("embed", "matmul")]
        place.upload_weights(weights, progress)
        self.cache = DeviceCache(place, specs, kv_type, n_pages)
        self.classes = sorted({c for c in _CLASSES if c < max_rows} | {max_rows})
        self._reserve_attention(place)
        self._pages = place.memory(n_seq * max_pages * 4, "step")
        at, stride = place.buffer(self.logits)
        self._stream = Stream()
        self.segment = _cpu.Segment(
            context=d.handle, stream=self._stream.handle, n_vocab=self.logits.width, max_pages=max_pages,
            n_seq=n_seq, pages=self._pages, logits=at, logits_stride=stride,
        )  # fmt: skip
        self.logits_stride = stride
        for size in self.classes:
            self._add_class(size)
        d.stream.wait()

    def _reserve_attention(self, place: Placement) -> None:
        most, d = 0, self.device
        for op in self._ops:
            if op.kind != "attend":
                continue
            kv, heads = op.args[1], op.params["n_head"]
            for n in (c for c in self.classes if c <= FEW):
                splits = decode_splits(n, heads, kv.n_kv, d.processors, self.max_pages * PAGE, d.capability)
                most = max(most, n * heads * splits * (kv.head_dim_v + 2) * 4)
        place.shared_scratch("attention", max(most, 256))

    def _add_class(self, size: int) -> None:
        """The graph of a step class, with inputs and results at addresses of its own: small steps copy little."""
        place = self._place
        assert place is not None
        m = min(size, self.max_outputs)
        at, total = input_offsets(size, m)
        inputs, best, value = (place.memory(n, "step") for n in (4 * total, 4 * m, 8 * m))
        chosen = self._locked(CHOSEN_RING * m * 16)
        chosen.view(0, chosen.nbytes)[:] = 0xFF
        step: dict[str, int] = {name: inputs + 4 * offset for name, offset in zip(FIELDS, at, strict=True)}
        step |= {"pages": self._pages, "page_stride": self.max_pages}
        to = {"host": chosen.address, "host_stride": m}
        if size == 1:  # a token that the next step can take over
            to |= {"next_tokens": step["tokens"], "next_positions": step["positions"]}
        b = self._built(step, size, m)
        b.add_argmax(self.logits, best, value, to)
        self._launches[size] = b.made
        self.segment.add_class(
            rows=size, outputs=m, graph=self._captured(b.made), inputs=inputs, input_bytes=4 * total, at=at, best=best,
            chosen=chosen.address, advances=size == 1,
        )  # fmt: skip
        if size == 1 and self.logits.width <= TOPK_WIDTH:
            top = TopTokens(self._locked(8 * TOPK_MOST + 64))
            b = self._built(step, 1, 1)
            b.add_topk(self.logits, TOPK_MOST, *top.addresses)
            self.segment.set_top(graph=self._captured(b.made), inputs=inputs, input_bytes=4 * total, at=at)
            self.top = top

    def _built(self, step: dict[str, int], size: int, m: int) -> LaunchBuilder:
        """The launches of a step up to its logits."""
        d = self.device
        assert self._place is not None
        b = LaunchBuilder(self._place, self.cache, step, size, m, d, self.max_pages * PAGE)
        b.build(Fusion(self._ops, size, [self.logits]).launches())
        return b

    def _captured(self, launches: list[Launch]) -> int:
        d = self.device
        d.stream.wait()
        graph = d.stream.capture(d.kernels, launches, d.early)
        self._graphs.append(graph)
        return graph.handle

    def _locked(self, nbytes: int) -> HostMemory:
        """Host memory that graphs write to."""
        made = HostMemory(nbytes, self.device.later)
        self._results.append(made)
        return made

    def launches(self, n: int) -> list[Launch]:
        """Of the step class that serves n tokens."""
        return self._launches[next(c for c in self.classes if c >= n)]

    # what the engine needs

    def slot(self, max_rows: int | None = None, max_outputs: int | None = None) -> DeviceSlot:
        """A slot for steps of at most so many tokens and outputs; it ends with the tape."""
        return self.device.run(self._make_slot, max_rows or self.max_rows, max_outputs or self.max_outputs)

    def _make_slot(self, max_rows: int, max_outputs: int) -> DeviceSlot:
        self._require_open()
        made = DeviceSlot(self, max_rows, max_outputs)
        self._slots.append(made)
        return made

    @property
    def page_bytes(self) -> int:
        """Of a page of the cache."""
        return self.cache.page_bytes

    def copy_page(self, to: int, source: int) -> None:
        """Copy a page of the cache, behind the steps that were queued."""
        size = self.page_bytes
        self.segment.copy(self.cache.address + to * size, self.cache.address + source * size, size)

    def fill_page(self, page: int, byte: int) -> None:
        """Fill a page of the cache, behind the steps that were queued."""
        size = self.page_bytes
        self.segment.fill(self.cache.address + page * size, byte, size)

    @property
    def nbytes(self) -> dict[str, int]:
        """Device memory by purpose."""
        return dict(self._place.nbytes) if self._place is not None else {}

    # direct use: tests and benchmarks

    def run(self, batch: Batch, table: Table) -> Result:
        """One step; table: page ids int32 [n_seq][max_pages]."""
        own, n, m = self._filled(batch), len(batch.tokens), len(batch.outputs)
        program = _cpu.Program([self.segment], table.ctypes.data, self.n_seq)
        program.run(own.native, n, m, 1, True)
        best, logprob = own.best[:m].copy(), (own.best_value[:m] - own.best_lse[:m]).astype(np.float32)
        program.run(own.native, n, m, 1, False)
        return Result(own.rows(m).copy(), best, logprob)

    def start(self, batch: Batch, table: Table) -> None:
        """Queue a step without results, and do not wait."""
        own = self._filled(batch)
        self.segment.queue(own.native, table.ctypes.data, len(batch.tokens), len(batch.outputs))

    def wait(self) -> None:
        """Until everything queued is done."""
        if self._stream is not None:
            self.device.run(self._stream.wait)

    def _filled(self, batch: Batch) -> DeviceSlot:
        self._require_open()
        if not self._own:
            self._own = [self.slot(), self.slot()]
        self._own.reverse()  # the other one may still be under way
        self._own[0].fill(batch)
        return self._own[0]

    def _require_open(self) -> None:
        if self._place is None:
            raise KernelError("the model's memory on the GPU was given back")

    # ownership

    def close(self) -> None:
        """Give the device's memory back; a second call does nothing. Nothing may be running."""
        if not self.device.ended:  # else the process is ending, and the driver has it all
            self.device.run(self._close)

    def close_later(self) -> None:
        """The same without waiting: for finalisers."""
        self.device.later(self._close)

    def _close(self) -> None:
        if self._place is None:
            return
        place, self._place = self._place, None
        things: list[Callable[[], None]] = [g.destroy for g in self._graphs] + [s.destroy for s in self._slots]
        if self._stream is not None:
            self.segment.clear()
            things = [self._stream.wait, *things, self._stream.destroy]
        for give_back in [*things, place.free]:
            with suppress(KernelError):  # of a context that a failed step has broken: it accepts nothing any more
                give_back()
        self._graphs.clear()
        self._slots.clear()
        self._own.clear()
        self._results.clear()
        self._launches.clear()
