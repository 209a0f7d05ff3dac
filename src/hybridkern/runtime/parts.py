"""The part of a model that lies on one device, as the engine sees it: what it runs of a program, its pages, its slots.

`CpuPart` and `CudaPart` offer the same, and nothing above them asks which one it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hybridkern.kernels import _cpu
from hybridkern.kernels.cpu.weights import Progress
from hybridkern.kernels.interface import Buffer, KVSpec, Op, Weight
from hybridkern.kernels.streamed import HostSource, Streamed
from hybridkern.plan.division import Command

from .kv_cache import Pages
from .slots import Slot

if TYPE_CHECKING:
    from hybridkern.kernels.cuda.slots import TopTokens

    from .link import Link


@dataclass(frozen=True)
class Sizes:
    """What a part is made for. max_rows, max_outputs: of one step; max_pages: of one sequence."""

    max_rows: int
    max_outputs: int
    n_pages: int
    n_seq: int
    max_pages: int
    kv_type: str
    n_vocab: int


@dataclass(frozen=True)
class Request:
    """What a part is to be. ops: all that it ever runs; logits: where it makes them, else None; specs: of the blocks
    whose cache it holds; index: its number among the GPUs. threads: for single tokens and for batches; cpu: name of the
    CPU's kernel set; repack: whether its weights are packed, else they are multiplied as they lie in the file `source`.
    """

    device: str
    ops: Sequence[Op]
    logits: Buffer | None
    specs: Sequence[KVSpec]
    sizes: Sizes
    index: int
    threads: tuple[int, int]
    cpu: str | None
    progress: Progress | None
    repack: bool
    source: Any


class Running(Protocol):
    """What a part does of one program. graphs: of a GPU; top: where `Program.decode_top` leaves the likeliest tokens,
    if it can."""

    graphs: _cpu.Graphs | None
    top: TopTokens | None

    def run(self, program: _cpu.Program, k: int) -> None:
        """Adds its segment number k to the program."""
        ...

    def end(self, b: Buffer) -> tuple[bool, int, int]:
        """Where a buffer lies: (whether in main memory, address, floats from row to row)."""
        ...

    def event(self) -> int:
        """A new event of the GPU, 0 on the CPU."""
        ...


class Part(Protocol):
    """What the engine needs of a part. gpu: the name of the GPU, None for the CPU; classes: rows of its step classes,
    and none on the CPU; mapped: whether the device reaches main memory by itself."""

    device: str
    pages: Pages
    gpu: str | None
    classes: Sequence[int]
    mapped: bool

    def prepare(self, commands: Sequence[Command], link: Link, fewest: int = 1) -> Running:
        """Makes ready for what it does of a program, which runs steps of `fewest` tokens and more."""
        ...

    def source(self, w: Weight) -> HostSource:
        """Where a matrix of the CPU lies for others that read it."""
        ...

    def stream(self, streamed: Streamed) -> None:
        """Takes these matrices from main memory in every step of the programs for many tokens that are prepared next;
        the other programs find the last blocks where such a step leaves them."""
        ...

    def refill(self) -> None:
        """Brings what a step that streams leaves, where none has ended well since the last."""
        ...

    def locked(self, nbytes: int) -> Any:
        """Main memory that all devices reach: an object with its `address`."""
        ...

    def slot(self, max_rows: int | None = None, max_outputs: int | None = None) -> Slot:
        """A slot whose logits are made here."""
        ...

    def attach(self, slot: Slot) -> None:
        """Adds to a slot of another part what is needed here."""
        ...

    def collect(self) -> None:
        """Adds what steps have observed to the arrays of the operations, where they have not done so."""
        ...

    def describe(self) -> list[str]: ...

    def close(self) -> None: ...


Factory = Callable[[Request], Part]


def factory_of(device: str) -> Factory:
    """What makes the part of a device: "cpu", "cuda0", "cuda1", ..."""
    from .cpu_part import CpuPart

    if device == "cpu":
        return CpuPart
    from .cuda_part import CudaPart

    return CudaPart
