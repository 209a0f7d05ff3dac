"""What one GPU holds of a model: weights, buffers, cache, page table, the inputs of steps. Step programs share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hybridkern.errors import KernelError
from hybridkern.kernels import _cpu
from hybridkern.kernels.interface import Buffer, KVSpec, Op, Weight
from hybridkern.kernels.streamed import Streamed

from .device import Device
from .driver import Event, HostMemory, Stream
from .launches import FEW, Struct, decode_splits
from .placement import PAGE, DeviceCache, Placement, Progress, require_matrix
from .slots import CHOSEN_RING, FIELDS, DeviceMemory, DeviceSlot, input_offsets
from .stream import Use, WeightStream

_CLASSES = (1, FEW, 32, 128, 512, 2048)


@dataclass(frozen=True)
class StepClass:
    """Steps of at most so many rows and outputs. inputs: where they begin, at: where each of them does, in int32; step:
    the struct that kernels take; best, value: what was chosen, on the device; chosen: in host memory, or None."""

    rows: int
    outputs: int
    inputs: int
    input_bytes: int
    at: list[int]
    step: Struct
    best: int
    value: int
    chosen: HostMemory | None


class Holdings:
    """Made empty; `prepare` fills it in the device's thread. Its stream is its own: others may be loading meanwhile.

    logits: where this GPU makes them, else None.
    """

    native: _cpu.Gpu
    cache: DeviceCache

    def __init__(self, device: Device) -> None:
        self.device = device
        self.logits: Buffer | None = None
        self.logits_stride = 0
        self.classes: list[int] = []
        self._place: Placement | None = None
        self._stream: Stream | None = None
        self._steps: dict[int, StepClass] = {}
        self._slots: list[DeviceSlot | DeviceMemory] = []
        self._locked: list[HostMemory] = []  # what graphs write to
        self._events: list[Event] = []
        self._before: list[Callable[[], None]] = []  # what is given back first
        self.streams: list[WeightStream] = []

    def prepare(
        self,
        ops: Sequence[Op],
        *,
        logits: Buffer | None,
        n_vocab: int,
        specs: Sequence[KVSpec],
        kv_type: str = "f16",
        n_pages: int,
        n_seq: int,
        max_pages: int,
        max_rows: int,
        max_outputs: int,
        progress: Progress | None = None,
        weights: Sequence[Weight] | None = None,
        index: int = 0,
    ) -> None:
        """ops: all that any program runs here. max_pages: of one sequence; max_rows, max_outputs: of one step; specs:
        of the blocks whose cache lies here; weights: what is uploaded, by default what the operations read."""
        d = self.device
        place = self._place = Placement(d.kernels, d.stream, max_rows, max_outputs)
        self.max_rows, self.max_outputs, self.n_seq, self.max_pages = max_rows, max_outputs, n_seq, max_pages
        self.n_vocab, self.logits, self.index = n_vocab, logits, index
        place.upload_weights(weights_of(ops) if weights is None else weights, progress)
        self.cache = DeviceCache(place, specs, kv_type, n_pages)
        self.classes = sorted({c for c in _CLASSES if c < max_rows} | {max_rows})
        self._reserve_attention(place, ops)
        self.pages = place.memory(n_seq * max_pages * 4, "step")
        at, self.logits_stride = (0, 0) if logits is None else place.buffer(logits)
        self._stream = Stream()
        self.native = _cpu.Gpu(
            context=d.handle, stream=self._stream.handle, n_vocab=n_vocab, max_pages=max_pages, n_seq=n_seq,
            pages=self.pages, logits=at, logits_stride=self.logits_stride, index=index,
        )  # fmt: skip

    def _reserve_attention(self, place: Placement, ops: Sequence[Op]) -> None:
        most, d = 0, self.device
        for op in ops:
            if op.kind != "attend":
                continue
            kv, heads = op.args[1], op.params["n_head"]
            for n in (c for c in self.classes if c <= FEW):
                splits = decode_splits(n, heads, kv.n_kv, d.processors, self.max_pages * PAGE, d.capability)
                most = max(most, n * heads * splits * (kv.head_dim_v + 2) * 4)
        place.shared_scratch("attention", max(most, 256))

    # what programs are made of

    @property
    def place(self) -> Placement:
        """Where everything lies."""
        self.require_open()
        assert self._place is not None
        return self._place

    def step_class(self, rows: int) -> StepClass:
        """With inputs and results at addresses of its own: small steps copy little."""
        if rows not in self._steps:
            m = min(rows, self.max_outputs)
            at, total = input_offsets(rows, m)
            inputs, best, value = (self.place.memory(n, "step") for n in (4 * total, 4 * m, 8 * m))
            step: Struct = {name: inputs + 4 * offset for name, offset in zip(FIELDS, at, strict=True)}
            step |= {"pages": self.pages, "page_stride": self.max_pages}
            chosen = None
            if self.logits is not None:
                chosen = self.locked(CHOSEN_RING * m * 16)
                chosen.view(0, chosen.nbytes)[:] = 0xFF
            self._steps[rows] = StepClass(rows, m, inputs, 4 * total, at, step, best, value, chosen)
        return self._steps[rows]

    def captured(self, uses: Sequence[Use], brings: WeightStream | None = None) -> int:
        """The handle of a graph. brings: what its weights come with that are not held."""
        d = self.device
        d.stream.wait()
        if brings is None:
            graph = d.stream.capture(d.kernels, [launch for launch, _ in uses], d.early)
        else:
            graph = brings.capture(d.stream, uses, d.early)
        self._before.append(graph.destroy)
        return graph.handle

    def stream(self, streamed: Streamed) -> WeightStream:
        """Weights that come from main memory, for graphs of this; in the device's thread."""
        for w in (w for block in streamed.blocks for w in block):
            require_matrix(w)
            if not w.data.flags.c_contiguous:
                raise KernelError(f"{w.name}: its rows do not lie one behind the other, so it cannot be streamed")
        made = WeightStream(self.device.kernels, self.place.memory, streamed)
        self.streams.append(made)
        self.place.place_weights(made.addresses())
        return made

    def refill(self) -> None:
        """Brings what a step that streams leaves, behind everything that is queued; in the device's thread."""
        assert self._stream is not None
        for made in self.streams:
            made.refill(self._stream)

    def locked(self, nbytes: int) -> HostMemory:
        """Host memory that graphs read and write; it ends with this, or with the last view of it."""
        made = HostMemory(nbytes, self.device.later)
        self._locked.append(made)
        return made

    def event(self) -> int:
        """The handle of an event, without a time."""
        self._events.append(Event(timed=False))
        return self._events[-1].handle

    def clears(self, clear: Callable[[], None]) -> None:
        """To be called before anything is given back."""
        self._before.insert(0, clear)

    # slots

    def slot(self, max_rows: int | None = None, max_outputs: int | None = None) -> DeviceSlot:
        """A slot for steps of at most so many tokens and outputs; it ends with this."""
        return self.device.run(self._make, lambda: DeviceSlot(self, max_rows or self.max_rows, max_outputs))

    def attach(self, native: _cpu.Slot) -> None:
        """Makes a slot of another part one of this GPU too."""
        self.device.run(self._make, lambda: DeviceMemory(self, native, 0))

    def _make(self, make: Callable[[], DeviceSlot | DeviceMemory]) -> DeviceSlot | DeviceMemory:
        self.require_open()
        self._slots.append(make())
        return self._slots[-1]

    # pages

    @property
    def page_bytes(self) -> int:
        """Of a page of the cache."""
        return self.cache.page_bytes

    def copy_page(self, to: int, source: int) -> None:
        """Copy a page of the cache, behind the steps that were queued."""
        size = self.page_bytes
        if size:
            self.native.copy(self.cache.address + to * size, self.cache.address + source * size, size)

    def fill_page(self, page: int, byte: int) -> None:
        """Fill a page of the cache, behind the steps that were queued."""
        size = self.page_bytes
        if size:
            self.native.fill(self.cache.address + page * size, byte, size)

    @property
    def nbytes(self) -> dict[str, int]:
        """Device memory by purpose."""
        return dict(self._place.nbytes) if self._place is not None else {}

    # what is observed

    def collect(self) -> None:
        """Adds the sums that steps have made of what they observe to the arrays of the operations."""
        self.require_open()
        if self._stream is not None:
            self.device.run(self.place.collect, self._stream)

    # ownership

    def wait(self) -> None:
        """Until everything queued is done."""
        if self._stream is not None:
            self.device.run(self._stream.wait)

    def require_open(self) -> None:
        """Raise KernelError once everything was given back."""
        if self._place is None:
            raise KernelError("the model's memory on the GPU was given back")

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
        things = [
            *self._before,
            *(s.close for s in self.streams),
            *(s.destroy for s in self._slots),
            *(e.destroy for e in self._events),
        ]
        if self._stream is not None:
            things = [self._stream.wait, *things, self._stream.destroy]
        for give_back in [*things, place.free]:
            with suppress(KernelError):  # of a context that a failed step has broken: it accepts nothing any more
                give_back()
        for kept in (self._before, self.streams, self._slots, self._events, self._locked, self._steps):
            kept.clear()


def weights_of(ops: Sequence[Op]) -> list[Weight]:
    """The matrices that operations read."""
    return [op.args[0 if op.kind == "embed" else 1] for op in ops if op.kind in ("embed", "matmul")]
