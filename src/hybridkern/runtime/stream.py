"""Steps of many tokens, in which a GPU computes blocks whose weights stay in main memory: what such steps look like.

Reading a weight over the bus costs the same for one token as for a thousand, computing with it does not. So a model
with streamed blocks has two step programs: one for few tokens, in which each product runs where its weight lies, and,
from `stream_from` tokens on, one in which the streamed blocks run on their GPU as though their weights lay there. What
they read and write otherwise is the same: buffers, and the cache, which stays where it is: on that GPU, or in main
memory, where it takes no room on the GPU, and attention is computed by the CPU.

Behind such a step the weights of the last blocks are still on the GPU, and nothing else wants their room until the next
one. The GPU computes these blocks, `stream_kept` of them, in steps of few tokens too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hybridkern.errors import ArgumentError
from hybridkern.kernels.interface import Op, Weight
from hybridkern.plan.assignment import CPU, Assignment, block_of

LEAST = 2  # tokens: a single one is decoded where its weights lie


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
