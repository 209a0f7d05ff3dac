"""CudaSet: the kernel set of one GPU, as the engine uses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkern.errors import ArgumentError, KernelError
from hybridkern.kernels.interface import Batch, Buffer, KVSpec, Op

from .build import LaunchBuilder
from .device import Device
from .driver import Graph
from .fusion import Fusion
from .launches import FEW, Launch, decode_splits
from .placement import PAGE, DeviceCache, Placement, Progress

Table = npt.NDArray[np.int32]
_CLASSES = (1, FEW, 32, 128, 512)


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

    def describe(self) -> str:
        """The device."""
        major, minor = self.device.capability
        return f"CUDA kernel set: {self.device.name}, sm_{major}{minor}, {self.device.processors} multiprocessors"


class CudaTape:
    """A recorded model on the device: one graph per step class, captured when it is first needed."""

    def __init__(self, device: Device, ops: Sequence[Op], logits: Buffer) -> None:
        self._device, self._ops, self._logits = device, list(ops), logits
        self._graphs: dict[int, Graph] = {}
        self._launches: dict[int, list[Launch]] = {}
        self._table: Table | None = None
        self._place: Placement | None = None

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
        """max_pages: of one sequence; max_rows, max_outputs: of one step."""
        d = self._device
        place = self._place = Placement(d.kernels, d.stream, max_rows, max_outputs)
        self._max_tokens, self._stride = max_pages * PAGE, max_pages
        weights = [op.args[0 if op.kind == "embed" else 1] for op in self._ops if op.kind in ("embed", "matmul")]
        place.upload_weights(weights, progress)
        self._cache = DeviceCache(place, specs, kv_type, n_pages)
        self._classes = sorted({c for c in _CLASSES if c < max_rows} | {max_rows})
        self._reserve_attention(place)
        # counts, tokens, positions, sequences, variants, outputs: written before every step; pages: when they changed
        fields = {"counts": 64, "tokens": max_rows, "positions": max_rows, "sequences": max_rows, "variants": max_rows}
        fields |= {"outputs": max_outputs}
        self._at: dict[str, tuple[int, int]] = {}
        at = 0
        for name, size in fields.items():
            self._at[name] = at, size
            at += -(-size // 64) * 64
        self._slot = np.zeros(at, np.int32)
        base = place.memory(self._slot.nbytes, "step")
        self._slot_address = base
        self._step: dict[str, int] = {name: base + 4 * offset for name, (offset, _) in self._at.items()}
        self._step |= {"pages": place.memory(n_seq * max_pages * 4, "step"), "page_stride": max_pages}
        self._best, self._value = place.memory(4 * max_outputs, "step"), place.memory(8 * max_outputs, "step")

    def _reserve_attention(self, place: Placement) -> None:
        most, d = 0, self._device
        for op in self._ops:
            if op.kind != "attend":
                continue
            kv, heads = op.args[1], op.params["n_head"]
            for n in (c for c in self._classes if c <= FEW):
                splits = decode_splits(n, heads, kv.n_kv, d.processors, self._max_tokens, d.capability)
                most = max(most, n * heads * splits * (kv.head_dim_v + 2) * 4)
        place.shared_scratch("attention", max(most, 256))

    def launches(self, n: int) -> list[Launch]:
        """Of the step class that serves n tokens."""
        assert self._place is not None
        size = next(c for c in self._classes if c >= n)
        if size not in self._launches:
            m = min(size, self._place.max_outputs)
            b = LaunchBuilder(self._place, self._cache, self._step, size, m, self._device, self._max_tokens)
            b.build(Fusion(self._ops, size, [self._logits]).launches())
            b.add_argmax(self._logits, self._best, self._value)
            self._launches[size] = b.made
        return self._launches[size]

    def run(self, batch: Batch, table: Table) -> Result:
        """One step; table: page ids int32 [n_seq][max_pages]."""
        return self._device.run(self._run, batch, table)

    def start(self, batch: Batch, table: Table) -> None:
        """Queue a step's inputs and its graph, without waiting (in the device's thread)."""
        n, m = len(batch.tokens), len(batch.outputs)
        if self._place is None:
            raise KernelError("the model's memory on the GPU was given back")
        if not 1 <= n <= self._place.max_rows or m > self._place.max_outputs:
            most = f"{self._place.max_rows} and {self._place.max_outputs}"
            raise ArgumentError(f"a step of {n} tokens and {m} outputs; it can have {most}")
        stream = self._device.stream
        if self._table is None or not np.array_equal(self._table, table):
            self._table = table.copy()
            stream.upload(self._step["pages"], self._table)
        variants = np.zeros(n) if batch.variants is None else batch.variants
        values = {"counts": [n, m], "tokens": batch.tokens, "positions": batch.positions, "sequences": batch.sequences}
        for name, value in (values | {"variants": variants, "outputs": batch.outputs}).items():
            offset = self._at[name][0]
            self._slot[offset : offset + len(value)] = value
        stream.upload(self._slot_address, self._slot)
        self._graph(n).launch(stream)

    def _graph(self, n: int) -> Graph:
        size = next(c for c in self._classes if c >= n)
        if size not in self._graphs:
            made = self.launches(n)
            self._device.stream.wait()
            self._graphs[size] = self._device.stream.capture(self._device.kernels, made, self._device.early)
        return self._graphs[size]

    def _run(self, batch: Batch, table: Table) -> Result:
        self.start(batch, table)
        assert self._place is not None
        m, stream = len(batch.outputs), self._device.stream
        at, stride = self._place.buffer(self._logits)
        padded = np.empty((m, stride), np.float32)
        best, value = np.empty(m, np.int32), np.empty((m, 2), np.float32)
        if m:
            for array, address in ((padded, at), (best, self._best), (value, self._value)):
                stream.download(array, address)
        stream.wait()
        return Result(padded[:, : self._logits.width], best, value[:, 0] - value[:, 1])

    @property
    def nbytes(self) -> dict[str, int]:
        """Device memory by purpose."""
        return dict(self._place.nbytes) if self._place is not None else {}

    def close(self) -> None:
        """Give the device's memory back; a second call does nothing."""
        self._device.run(self._close)

    def _close(self) -> None:
        if self._place is None:
            return
        self._device.stream.wait()
        for graph in self._graphs.values():
            graph.destroy()
        self._graphs.clear()
        self._launches.clear()
        place, self._place = self._place, None
        place.free()
