"""What a model takes on a GPU, to the byte, without one: a placement that only counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridkern.kernels.interface import Buffer, KVSpec, Op, Weight
from hybridkern.kernels.streamed import key_of

from . import token
from .build import LaunchBuilder
from .cache_layout import cache_head_bytes
from .fusion import Fusion
from .holdings import _CLASSES, weights_of
from .launches import BLOCK_MEMORY, FEW, TOPK_MOST, TOPK_WIDTH, Launch, decode_splits
from .layout import device_bytes
from .placement import PAGE, DeviceCache, Placement, Progress, padded, require_matrix
from .slots import input_offsets


@dataclass(frozen=True)
class Limits:
    """What launches must know of a GPU; the defaults are an H200's."""

    processors: int = 132
    block_memory: int = BLOCK_MEMORY
    capability: tuple[int, int] = (9, 0)
    wgmma: bool = True


class Counting(Placement):
    """Gives addresses that nothing lies at. nbytes is what a Placement would have allocated."""

    def __init__(self, max_rows: int, max_outputs: int) -> None:
        super().__init__(None, None, max_rows, max_outputs)  # type: ignore[arg-type]
        self._next = 1 << 40
        self._counted: dict[str, int] = {}
        self._shared: dict[str, int] = {}

    def memory(self, nbytes: int, what: str) -> int:
        """An address of its own."""
        size = padded(max(1, nbytes), 256)
        self.nbytes[what] = self.nbytes.get(what, 0) + padded(nbytes, 256)
        self._next += size
        return self._next - size

    def upload_weights(self, weights: Iterable[Weight], progress: Progress | None = None) -> None:
        """Each once."""
        for w in {key_of(w): w for w in weights}.values():
            require_matrix(w)
            self._weights[key_of(w)] = self.memory(device_bytes(w.type, w.rows, w.cols), "weights")

    def array(self, data: np.ndarray[Any, Any], what: str) -> int:
        """As memory."""
        return self.memory(data.nbytes, what)

    def shared_scratch(self, name: str, nbytes: int) -> int:
        """As memory, once."""
        if name not in self._shared:
            self._shared[name] = self.memory(nbytes, "buffers")
        return self._shared[name]


_CROSSING = Launch("hk_link", (1, 1, 1), (1, 1, 1), 0, np.zeros((), np.uint8))  # ends a run of launches


def step_classes(max_rows: int) -> list[int]:
    """Tokens of the steps that have a graph."""
    return sorted({c for c in _CLASSES if c < max_rows} | {max_rows})


@dataclass(frozen=True)
class Program:
    """What a GPU does of a step program. pieces: (operations between two crossings, what is read behind them);
    crossing: what it sends and receives; whole: whether that is all there is; fewest: tokens of its steps."""

    pieces: Sequence[tuple[Sequence[Op], Sequence[Buffer]]]
    crossing: Sequence[Buffer] = ()
    whole: bool = False
    fewest: int = 1


def device_memory(
    programs: Sequence[Program],
    logits: Buffer | None,
    specs: Sequence[KVSpec],
    *,
    kv_type: str,
    n_pages: int,
    n_seq: int,
    max_pages: int,
    max_rows: int,
    max_outputs: int,
    limits: Limits,
    classes: Sequence[int] | None = None,
) -> dict[str, int]:
    """Bytes by purpose of what a GPU holds for these programs. logits: None if they are made elsewhere; classes: of
    steps, None for all."""
    place = Counting(max_rows, max_outputs)
    ops = list({id(op): op for p in programs for piece, _ in p.pieces for op in piece}.values())
    place.upload_weights(weights_of(ops))
    cache = DeviceCache(place, specs, kv_type, n_pages)
    classes = step_classes(max_rows) if classes is None else classes
    most = 256
    for op in (op for op in ops if op.kind == "attend"):
        kv, heads = op.args[1], op.params["n_head"]
        for n in (c for c in classes if c <= FEW):
            splits = decode_splits(n, heads, kv.n_kv, limits.processors, max_pages * PAGE, limits.capability)
            most = max(most, n * heads * splits * (kv.head_dim_v + 2) * 4)
    place.shared_scratch("attention", most)
    place.memory(n_seq * max_pages * 4, "step")
    for b in [*([] if logits is None else [logits]), *(b for p in programs for b in p.crossing)]:
        place.buffer(b)
    for n in classes:
        m = min(n, max_outputs)
        mine = [p for p in programs if n >= p.fewest or n == classes[-1]]
        if not mine:
            continue
        for nbytes in (4 * input_offsets(n, m)[1], 4 * m, 8 * m):
            place.memory(nbytes, "step")
        for p in mine:
            builder = LaunchBuilder(place, cache, {}, n, m, limits, max_pages * PAGE)
            _count_class(place, limits, builder, p, logits, n)
    return {what: n for what, n in place.nbytes.items() if n}


def _count_class(
    place: Counting, device: Limits, builder: LaunchBuilder, program: Program, logits: Buffer | None, n: int
) -> None:
    """The memory that the launches of a step class ask for; of a single token also its tapes (Graphs makes them)."""
    launches: list[Launch] = []
    for ops, keep in program.pieces:
        start = len(builder.made)
        builder.build(Fusion(ops, n, [*keep, *([] if logits is None else [logits])]).launches())
        launches += [*builder.made[start:], _CROSSING]
    if logits is not None:
        builder.add_argmax(logits, 0, 0)
    if n == 1 and program.fewest == 1:
        _count_tapes(place, device, launches)
    if logits is not None and n == 1 and program.whole and logits.width <= TOPK_WIDTH:
        builder.add_topk(logits, TOPK_MOST, 0, 0, 0)
        _count_tapes(place, device, launches)


def _count_tapes(place: Counting, device: Limits, launches: Sequence[Launch]) -> None:
    with suppress(token.NotForToken):
        token.require(device.capability)
        token.fold(
            launches, {}, processors=device.processors, limit=device.block_memory, has=lambda _: True,
            arrived=lambda: place.shared_scratch("token", 256), put=lambda tape: place.memory(len(tape), "tape"),
        )  # fmt: skip


def head_bytes(kv_type: str, spec: KVSpec) -> int:
    """Of one KV head in a page of the cache."""
    return cache_head_bytes(kv_type, spec.head_dim_k, spec.head_dim_v)
