"""Steps of many tokens, in which a GPU computes blocks whose weights stay in main memory: what such steps look like.

Reading a weight over the bus costs the same for one token as for a thousand, computing with it does not. So a model
with streamed blocks has two step programs: one for few tokens, in which each product runs where its weight lies, and,
from `stream_from` tokens on, one in which the streamed blocks run on their GPU as though their weights lay there. What
they read and write otherwise is the same: buffers, and the cache, which stays where it is: on that GPU, or in main
memory, where it takes no room on the GPU, and attention is computed by the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hybridkern.errors import ArgumentError
from hybridkern.kernels.interface import Op, Weight
from hybridkern.plan.assignment import CPU, Assignment

LEAST = 2  # tokens: a single one is decoded where its weights lie


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
    return assignment


def streaming(assignment: Assignment) -> Assignment:
    """As steps of `stream_from` tokens and more see it: the matrices of streamed blocks are on their GPU."""

    def seen(name: str, device: str) -> str:
        block = block_of(name)
        return device if block is None or device != CPU else assignment.streamed.get(block, device)

    tensors = {name: seen(name, device) for name, device in assignment.tensors.items()}
    return replace(assignment, tensors=tensors, streamed={}, stream_from=0, stream_depth=0)


def first_step(assignment: Assignment) -> int:
    """Tokens of the smallest step in which blocks are streamed."""
    return max(LEAST, assignment.stream_from)


def streamed_blocks(ops: Sequence[Op], assignment: Assignment) -> dict[str, list[list[Weight]]]:
    """By GPU, the matrices that it reads from main memory: of each block, in the order of computing."""
    found: dict[str, dict[int, list[Weight]]] = {}
    for w in _matrices(ops):
        block = block_of(w.name)
        if block in assignment.streamed and assignment.tensors[w.name] == CPU:
            assert block is not None
            found.setdefault(assignment.streamed[block], {}).setdefault(block, []).append(w)
    return {device: list(blocks.values()) for device, blocks in found.items()}


def _matrices(ops: Iterable[Op]) -> Iterable[Weight]:
    return (op.args[1] for op in ops if op.kind == "matmul")
