"""Where everything of a model lies: what a plan says and the runtime follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CPU = "cpu"


@dataclass(frozen=True)
class Assignment:
    """Devices are named "cpu", "cuda0", "cuda1", ...

    tensors: device of every matrix of the blocks, by its name in the file. An operation runs where its weight lies;
    norms are on every device that needs them, operations without weights follow the cache. kv: device of every block's
    keys and values. embedding, head: of the rows of tokens and of the product that makes logits, which may be one
    tensor of the file. n_ubatch: tokens of a step, at most. streamed: blocks that a GPU computes, in steps of
    `stream_from` tokens and more, with weights of the CPU that it reads from main memory; their cache may be on either.
    stream_depth: such blocks that the GPU's memory holds at a time.
    """

    tensors: Mapping[str, str]
    kv: tuple[str, ...]
    embedding: str
    head: str
    n_ubatch: int
    streamed: Mapping[int, str] = field(default_factory=dict)
    stream_from: int = 0
    stream_depth: int = 0

    @property
    def devices(self) -> tuple[str, ...]:
        """All that hold anything, the CPU first."""
        used = {self.embedding, self.head, *self.kv, *self.tensors.values(), *self.streamed.values()}
        return tuple(sorted(used, key=lambda d: (d != CPU, len(d), d)))
