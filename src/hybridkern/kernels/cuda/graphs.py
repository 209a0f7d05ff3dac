"""The graphs of one step program on one GPU: what it does there, for every step class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hybridkern.kernels import _cpu
from hybridkern.kernels.interface import Buffer, Op

from . import token
from .build import LaunchBuilder
from .fusion import Fusion
from .holdings import Holdings, StepClass
from .launches import TOPK_MOST, TOPK_WIDTH, Launch, Struct
from .placement import PAGE
from .slots import TopTokens
from .stream import Use, WeightStream


@dataclass(frozen=True)
class Piece:
    """Operations between two crossings. keep: buffers that are read behind it, by whomever."""

    ops: Sequence[Op]
    keep: Sequence[Buffer] = ()


@dataclass(frozen=True)
class Crossing:
    """What kernels of small steps send, or receive, through mapped host memory: buffers and where their rows pass; the
    flag says that they are there, the abort word that nobody will come."""

    receive: bool
    parts: Sequence[tuple[Buffer, int]]
    flag: int
    abort: int


class Graphs:
    """Captured here, in the device's thread. linked(rows): whether a class of steps is one graph, with its crossings
    done by kernels; else every piece is a graph of its own. brings: where weights that are not held come from; fewest:
    tokens of a step that this program is for, at least; one_kernel: whether the step of one token is one kernel where
    that is possible. why_many says why it is not."""

    def __init__(
        self,
        holdings: Holdings,
        pieces: Sequence[Piece | Crossing],
        linked: Callable[[int], bool] = lambda rows: False,
        *,
        brings: WeightStream | None = None,
        fewest: int = 1,
        one_kernel: bool = True,
    ) -> None:
        self.why_many = "" if one_kernel else "that was not wanted"
        if brings is not None:
            self.why_many = "weights come from main memory"
        self._holdings, self._pieces, self._brings = holdings, list(pieces), brings
        self._launches: dict[int, list[Launch]] = {}
        self.top: TopTokens | None = None  # of the last step that asked for it
        n = sum(isinstance(p, Piece) for p in pieces)
        self._whole = len(self._pieces) == 1  # all of a model
        self.native = _cpu.Graphs(holdings.native, n)
        holdings.clears(self.native.clear)
        self.classes = [rows for rows in holdings.classes if rows >= fewest or rows == holdings.classes[-1]]
        for rows in self.classes:
            self._add_class(holdings.step_class(rows), linked(rows))
        holdings.device.stream.wait()

    def launches(self, n: int) -> list[Launch]:
        """Of the step class that serves n tokens."""
        return self._launches[next(c for c in self.classes if c >= n)]

    def _add_class(self, c: StepClass, linked: bool) -> None:
        built = [self._built(c, self._pieces, self._choose)] if linked else self._one_by_one(c)
        self._launches[c.rows] = [one for uses in built for one, _ in uses]
        advances = c.rows == 1 and self._whole and c.chosen is not None
        self.native.add_class(
            rows=c.rows, outputs=c.outputs, graphs=[self._captured(x) for x in built], inputs=c.inputs,
            input_bytes=c.input_bytes, at=c.at, best=c.best, chosen=c.chosen.address if c.chosen else 0,
            advances=advances, linked=linked,
        )  # fmt: skip
        if advances and self._holdings.n_vocab <= TOPK_WIDTH:
            top = TopTokens(self._holdings.locked(8 * TOPK_MOST + 64))
            graph = self._built(c, self._pieces, lambda b, _: b.add_topk(self._logits(), TOPK_MOST, *top.addresses))
            self.native.set_top(graph=self._captured(graph), inputs=c.inputs, input_bytes=c.input_bytes, at=c.at)
            self.top = top

    def _captured(self, uses: list[Use]) -> int:
        return self._holdings.captured(uses, self._brings)

    def _one_by_one(self, c: StepClass) -> list[list[Use]]:
        pieces = [p for p in self._pieces if isinstance(p, Piece)]
        return [self._built(c, [p], self._choose if p is pieces[-1] else None) for p in pieces]

    def _built(
        self,
        c: StepClass,
        pieces: Sequence[Piece | Crossing],
        end: Callable[[LaunchBuilder, StepClass], None] | None,
    ) -> list[Use]:
        """The launches of some pieces, and of what the logits at their end become."""
        h = self._holdings
        b = LaunchBuilder(h.place, h.cache, c.step, c.rows, c.outputs, h.device, h.max_pages * PAGE)
        for piece in pieces:
            if isinstance(piece, Crossing):
                b.add_crossing(piece.receive, piece.parts, piece.flag, piece.abort)
            else:
                keep = [*piece.keep, *([h.logits] if h.logits is not None else [])]
                b.build(Fusion(piece.ops, c.rows, keep).launches())
        if end is not None and h.logits is not None:
            end(b, c)
        return self._folded(b.uses(), c.step) if c.rows == 1 else b.uses()

    def _folded(self, uses: list[Use], step: Struct) -> list[Use]:
        """The launches of one token, with one kernel in the place of as many as it can replace."""
        d, place = self._holdings.device, self._holdings.place
        if self.why_many:
            return uses
        try:
            token.require(d.capability)
            made = token.fold(
                [one for one, _ in uses], step, processors=d.processors, limit=d.block_memory, has=d.kernels.has,
                arrived=lambda: place.shared_scratch("token", 256),
                put=lambda tape: place.array(np.frombuffer(tape, np.uint8), "tape"),
            )  # fmt: skip
        except token.NotForToken as error:
            self.why_many = str(error)
            return uses
        return [(one, ()) for one in made]

    def describe(self) -> str:
        """How the step of one token runs."""
        if self.why_many:
            return f"a token: one launch an operation, as one kernel cannot do it: {self.why_many}"
        return "a token: one kernel from the first norm to the logits"

    def _logits(self) -> Buffer:
        assert self._holdings.logits is not None
        return self._holdings.logits

    def _choose(self, b: LaunchBuilder, c: StepClass) -> None:
        """The greedy choice; a token that the next step can take over where the whole step is here."""
        assert c.chosen is not None
        to: Struct = {"host": c.chosen.address, "host_stride": c.outputs}
        if c.rows == 1 and self._whole:
            to |= {"next_tokens": c.step["tokens"], "next_positions": c.step["positions"]}
        b.add_argmax(self._logits(), c.best, c.value, to)
