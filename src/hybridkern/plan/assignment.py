"""Where everything of a model lies: what a plan says and the runtime follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from hybridkern.errors import ArgumentError

CPU = "cpu"


@dataclass(frozen=True)
class Assignment:
    """Devices are named "cpu", "cuda0", "cuda1", ...

    tensors: device of every matrix of the blocks, by its name in the file. An operation runs where its weight lies;
    norms are on every device that needs them, operations without weights follow the cache. kv: device of every block's
    keys and values. embedding, head: of the rows of tokens and of the product that makes logits, which may be one
    tensor of the file. n_ubatch: tokens of a step, at most. streamed: blocks that a GPU computes, in steps of
    `stream_from` tokens and more, with weights of the CPU that it reads from main memory; their cache may be on either.
    stream_depth: such blocks that the GPU's memory holds at a time. stream_kept: as many of the last of them, on every
    GPU, are computed there in smaller steps too: their weights are what the last step left in that memory.
    """

    tensors: Mapping[str, str]
    kv: tuple[str, ...]
    embedding: str
    head: str
    n_ubatch: int
    streamed: Mapping[int, str] = field(default_factory=dict)
    stream_from: int = 0
    stream_depth: int = 0
    stream_kept: int = 0

    @cached_property
    def kept(self) -> Mapping[int, str]:
        """Streamed blocks that a GPU computes in steps of any size."""
        over = {block_of(name) for name, device in self.tensors.items() if device == CPU}
        by_gpu: dict[str, list[int]] = {}
        for block in sorted(self.streamed):
            if block in over:
                by_gpu.setdefault(self.streamed[block], []).append(block)
        n = min(self.stream_kept, self.stream_depth)
        return {b: gpu for gpu, blocks in by_gpu.items() for b in (blocks[-n:] if n else ())}

    @cached_property
    def in_small_steps(self) -> Assignment:
        """As steps of less than `stream_from` tokens see it: the matrices of kept blocks are on their GPU."""
        return self._moved(self.kept)

    @cached_property
    def in_large_steps(self) -> Assignment:
        """As steps of `stream_from` tokens and more see it: the matrices of streamed blocks are on their GPU."""
        return self._moved(self.streamed)

    def _moved(self, blocks: Mapping[int, str]) -> Assignment:
        def seen(name: str, device: str) -> str:
            block = block_of(name)
            return device if block is None or device != CPU else blocks.get(block, device)

        tensors = {name: seen(name, device) for name, device in self.tensors.items()}
        return replace(self, tensors=tensors, streamed={}, stream_from=0, stream_depth=0, stream_kept=0)

    @property
    def devices(self) -> tuple[str, ...]:
        """All that hold anything, the CPU first."""
        used = {self.embedding, self.head, *self.kv, *self.tensors.values(), *self.streamed.values()}
        return tuple(sorted(used, key=lambda d: (d != CPU, len(d), d)))


def block_of(name: str) -> int | None:
    """The block that a tensor of the file belongs to; None for those of none."""
    prefix, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    return int(number) if prefix == "blk" and number.isdecimal() else None


def checked(assignment: Assignment) -> Assignment:
    """The same. Raises ArgumentError for blocks that cannot be streamed as it says."""
    for block, device in assignment.streamed.items():
        if not 0 <= block < len(assignment.kv):
            raise ArgumentError(f"block {block} is to be streamed, but the model has {len(assignment.kv)}")
        if device == CPU:
            raise ArgumentError(f"block {block} is to be streamed to {device}: weights are streamed to a GPU")
    if assignment.streamed and (assignment.stream_from < 1 or assignment.stream_depth < 1):
        raise ArgumentError(
            f"streamed blocks need a number of tokens from which on they are (stream_from = {assignment.stream_from}) "
            f"and room for one at least (stream_depth = {assignment.stream_depth})"
        )
    if not 0 <= assignment.stream_kept <= assignment.stream_depth:
        raise ArgumentError(
            f"of {assignment.stream_depth} streamed blocks that a GPU holds at a time, {assignment.stream_kept} are to "
            "be kept (stream_kept)"
        )
    return assignment
