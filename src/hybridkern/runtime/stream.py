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

from hybridkern.kernels.interface import Op, Weight
from hybridkern.plan.assignment import CPU, Assignment, block_of

LEAST = 2  # tokens: a single one is decoded where its weights lie


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
