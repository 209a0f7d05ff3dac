"""The part of a model that lies on one kernel set: its segment of the step program, its pages, its slots.

Today a model is one part. `CpuPart` and `CudaPart` offer the same, and nothing above them asks which one it has.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hybridkern.errors import ArgumentError, OutOfMemoryError
from hybridkern.kernels import _cpu
from hybridkern.kernels.cpu import CpuSet
from hybridkern.kernels.cpu.build import CacheLayout, padded
from hybridkern.kernels.cpu.weights import Progress
from hybridkern.kernels.interface import Buffer, KVSpec, Op

from .kv_cache import PAGE, Pages
from .slots import Slot, StepSlot

if TYPE_CHECKING:
    from hybridkern.kernels.cuda import CudaSet
    from hybridkern.kernels.cuda.slots import TopTokens

KV_TYPES = {"f16": 0, "q8_0": 1, "q4_0": 2, "f32": 3}


@dataclass(frozen=True)
class Sizes:
    """What a part is made for. max_rows, max_outputs: of one step; max_pages: of one sequence."""

    max_rows: int
    max_outputs: int
    n_pages: int
    n_seq: int
    max_pages: int
    kv_type: str


class Part(Protocol):
    """What the engine needs of a part. ahead: two slots for greedy steps that are queued ahead, or none. top: where
    `Program.decode_top` leaves the likeliest tokens, if it can. gpu: the name of the GPU, None for the CPU."""

    pages: Pages
    ahead: list[Slot]
    top: TopTokens | None
    gpu: str | None

    def program(self, pages: int, n_seq: int) -> _cpu.Program: ...

    def slot(self) -> Slot: ...

    def describe(self) -> list[str]: ...

    def close(self) -> None: ...


class HostPages:
    """Pages in main memory, touched when they are first written."""

    def __init__(self, specs: Sequence[KVSpec], sizes: Sizes) -> None:
        if sizes.kv_type not in KV_TYPES:
            raise ArgumentError(f"kv_type {sizes.kv_type!r} is not one of {', '.join(KV_TYPES)}")
        kv = KV_TYPES[sizes.kv_type]
        planes: dict[int, tuple[int, int, int]] = {}
        at = 0
        for spec in specs:
            _check_heads(spec, sizes.kv_type)
            k, v = _cpu.kv_plane_bytes(kv, spec.head_dim_k)[0], _cpu.kv_plane_bytes(kv, spec.head_dim_v)[1]
            planes[spec.block] = (at, k, v)
            at += spec.n_kv * (k + v)
        self.page_bytes = max(4096, padded(at, 4096))
        self._memory = _cpu.Memory(self.page_bytes * sizes.n_pages, True)
        self.layout = CacheLayout(kv, self._memory.address, self.page_bytes, planes, sizes.max_pages)
        self._bytes = np.frombuffer(self._memory, np.uint8).reshape(sizes.n_pages, -1)[:, : self.page_bytes]

    def copy_page(self, to: int, source: int) -> None:
        """Copy a whole page."""
        self._bytes[to] = self._bytes[source]

    def fill_page(self, page: int, byte: int) -> None:
        """Fill a whole page."""
        self._bytes[page] = byte


def _check_heads(spec: KVSpec, kv_type: str) -> None:
    for dim in (spec.head_dim_k, spec.head_dim_v):
        if kv_type in ("q8_0", "q4_0") and dim % 32:
            raise ArgumentError(
                f"kv_type {kv_type} needs head sizes that 32 divides; block {spec.block} has {dim}: use f16 or f32"
            )


class CpuPart:
    """On the CPU set. threads: for single tokens and for batches; cpu: name of the kernel set; repack: whether weights
    are packed, else they are multiplied as they lie in the file `source`."""

    def __init__(
        self,
        ops: Sequence[Op],
        logits: Buffer,
        specs: Sequence[KVSpec],
        sizes: Sizes,
        *,
        threads: tuple[int, int],
        cpu: str | None,
        progress: Progress | None,
        repack: bool = True,
        source: Any = None,
    ) -> None:
        self._sizes, self._n_vocab, self._threads = sizes, logits.width, threads
        self.pages = HostPages(specs, sizes)
        self._set = CpuSet(cpu)
        self.tape = self._set.lower(
            ops,
            logits=logits,
            cache=self.pages.layout,
            max_rows=sizes.max_rows,
            max_outputs=sizes.max_outputs,
            threads=threads[1],
            progress=progress,
            repack=repack,
            source=source,
        )
        self.ahead: list[Slot] = []
        self.top: TopTokens | None = None
        self.gpu: str | None = None

    def program(self, pages: int, n_seq: int) -> _cpu.Program:
        """Runs steps over a page table."""
        return _cpu.Program(pages, n_seq).replay(self.tape)

    def slot(self) -> StepSlot:
        """For steps of any size."""
        s = self._sizes
        return StepSlot(s.max_rows, s.max_outputs, s.n_seq, s.max_pages, self._n_vocab)

    def describe(self) -> list[str]:
        """Kernel set, memory, length of the tape."""
        s = self._sizes
        return [
            self._set.describe(),
            "everything lies on the CPU: a GPU was not asked for (-ngl all, n_gpu_layers='all')",
            f"weights: {self._set.weight_bytes / 2**20:.1f} MiB packed, {self._set.raw_bytes / 2**20:.1f} MiB as they "
            "lie in the file",
            f"buffers: {self._set.buffer_bytes / 2**20:.1f} MiB for steps of {s.max_rows} tokens",
            f"KV cache: {s.kv_type}, {s.n_pages} pages of {PAGE} tokens and {self.pages.page_bytes / 2**20:.2f} MiB "
            "each, touched when used",
            f"threads: {self._threads[0]} for single tokens, {self._threads[1]} for batches",
            f"tape: {self.tape.n_ops} operations, {self.tape.n_syncs} barriers",
        ]

    def close(self) -> None:
        """Memory goes with the last reference."""


def _collected(cuda: CudaSet) -> bool:
    """Frees what nobody can reach any more: models refer to themselves, and only memory of the GPU is short."""
    before = cuda.live_bytes()
    gc.collect()
    return cuda.live_bytes() < before


class CudaPart:
    """On a GPU, with all that belongs to it in the GPU's memory."""

    def __init__(
        self,
        ops: Sequence[Op],
        logits: Buffer,
        specs: Sequence[KVSpec],
        sizes: Sizes,
        *,
        device: int,
        progress: Progress | None,
    ) -> None:
        from hybridkern.kernels.cuda import CudaSet
        from hybridkern.kernels.cuda.cache_layout import KV_TYPES as GPU_KV_TYPES
        from hybridkern.kernels.cuda.graphs import Graphs, Piece

        if sizes.kv_type not in GPU_KV_TYPES:
            raise ArgumentError(f"kv_type {sizes.kv_type!r}: a cache on the GPU is {', '.join(GPU_KV_TYPES)}")
        self._sizes = sizes
        self._set = CudaSet(device)
        hold = partial(
            self._set.hold,
            ops,
            logits=logits,
            n_vocab=logits.width,
            specs=specs,
            kv_type=sizes.kv_type,
            n_pages=sizes.n_pages,
            n_seq=sizes.n_seq,
            max_pages=sizes.max_pages,
            max_rows=sizes.max_rows,
            max_outputs=sizes.max_outputs,
            progress=progress,
        )
        try:
            self._holdings = hold()
        except OutOfMemoryError:
            if not _collected(self._set):
                raise
            self._holdings = hold()
        try:
            self._graphs = self._set.device.run(Graphs, self._holdings, [Piece(ops)])
        except BaseException:
            self._holdings.close()
            raise
        self.pages = self._holdings
        self.top, self.gpu = self._graphs.top, self._set.device.name
        self.ahead: list[Slot] = [self._holdings.slot(1, 1), self._holdings.slot(1, 1)]

    def program(self, pages: int, n_seq: int) -> _cpu.Program:
        """Runs steps over a page table."""
        return _cpu.Program(pages, n_seq).launch(self._graphs.native)

    def slot(self) -> Slot:
        """For steps of any size."""
        return self._holdings.slot()

    @property
    def nbytes(self) -> dict[str, int]:
        """Device memory by purpose."""
        return self._holdings.nbytes

    def describe(self) -> list[str]:
        """Device, memory to the byte, launches of a token."""
        s, used = self._sizes, self.nbytes
        return [
            self._set.describe(),
            *(f"GPU memory, {what}: {n} bytes ({n / 2**20:.1f} MiB)" for what, n in sorted(used.items())),
            f"GPU memory: {sum(used.values())} bytes in all",
            f"KV cache: {s.kv_type}, {s.n_pages} pages of {PAGE} tokens and {self.pages.page_bytes} bytes each",
            f"graphs: {len(self._graphs.launches(1))} launches for a token, steps of {s.max_rows} tokens at most",
        ]

    def close(self) -> None:
        """Give the GPU's memory back."""
        self._holdings.close()

    def __del__(self) -> None:
        holdings = getattr(self, "_holdings", None)
        if holdings is not None:
            holdings.close_later()
