"""What steps with streamed blocks look like; pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hybridkern.errors import ArgumentError
from hybridkern.kernels.interface import Recorder, Weight
from hybridkern.plan.assignment import Assignment, block_of, checked
from hybridkern.runtime.stream import first_step, streamed_blocks

TENSORS = {
    "blk.0.attn_q.weight": "cpu", "blk.0.ffn_up.weight": "cpu",
    "blk.1.attn_q.weight": "cuda0", "blk.1.ffn_up.weight": "cpu",
    "blk.2.attn_q.weight": "cuda0", "blk.2.ffn_up.weight": "cuda0",
    "blk.3.attn_q.weight": "cpu", "blk.3.ffn_up.weight": "cpu",
}  # fmt: skip
GIVEN = Assignment(
    tensors=TENSORS, kv=("cuda0", "cuda0", "cuda0", "cpu"), embedding="cpu", head="cuda0", n_ubatch=512,
    streamed={0: "cuda0", 1: "cuda0"}, stream_from=40, stream_depth=2,
)  # fmt: skip


def test_block_of() -> None:
    assert [block_of(n) for n in ("blk.12.attn_q.weight", "output.weight", "blk.x", "blk", "blkk.1.a")] == [
        12, None, None, None, None
    ]  # fmt: skip


def test_only_matrices_of_streamed_blocks_move() -> None:
    seen = GIVEN.in_large_steps
    assert {n for n in TENSORS if seen.tensors[n] != TENSORS[n]} == {
        "blk.0.attn_q.weight", "blk.0.ffn_up.weight", "blk.1.ffn_up.weight"
    }  # fmt: skip
    assert (seen.kv, seen.embedding, seen.head, seen.n_ubatch) == (GIVEN.kv, "cpu", "cuda0", 512)
    assert not seen.streamed and seen.in_large_steps == seen


def test_the_last_blocks_are_kept() -> None:
    """The last streamed blocks of which anything is streamed, as many as are asked for."""
    a = replace(GIVEN, streamed={0: "cuda0", 1: "cuda0", 2: "cuda0"})
    assert not a.kept and a.in_small_steps.tensors == TENSORS
    assert replace(a, stream_kept=1).kept == {1: "cuda0"}  # block 2 is there anyway
    two = replace(a, stream_kept=2)
    assert two.kept == {0: "cuda0", 1: "cuda0"} and two.in_small_steps.tensors == a.in_large_steps.tensors
    one = replace(a, stream_kept=1).in_small_steps
    assert {n for n in TENSORS if one.tensors[n] != TENSORS[n]} == {"blk.1.ffn_up.weight"} and one.kv == a.kv
    apart = replace(GIVEN, streamed={0: "cuda0", 1: "cuda1", 3: "cuda0"}, stream_kept=1)
    assert apart.kept == {1: "cuda1", 3: "cuda0"}  # of each GPU


def test_matrices_by_block_in_the_order_of_computing() -> None:
    r = Recorder()
    x, y = r.buffer("x", 32), r.buffer("y", 32)
    weights = {n: Weight(n, "F32", 32, 32, np.zeros((32, 128), np.uint8)) for n in [*TENSORS, "output.weight"]}
    for name in ("blk.1.attn_q.weight", "blk.1.ffn_up.weight", "blk.0.ffn_up.weight", "blk.0.attn_q.weight"):
        r.matmul(y, x, weights[name])
    for name in ("blk.2.ffn_up.weight", "blk.3.ffn_up.weight", "output.weight"):
        r.matmul(y, x, weights[name])
    found = streamed_blocks(r.ops, replace(GIVEN, tensors=TENSORS | {"output.weight": "cpu"}))
    assert {d: [[w.name for w in block] for block in blocks] for d, blocks in found.items()} == {
        "cuda0": [["blk.1.ffn_up.weight"], ["blk.0.ffn_up.weight", "blk.0.attn_q.weight"]]
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"streamed": {4: "cuda0"}}, "block 4 .* the model has 4"),
        ({"streamed": {0: "cpu"}}, "to cpu"),
        ({"stream_from": 0}, "stream_from = 0"),
        ({"stream_depth": 0}, "stream_depth = 0"),
        ({"stream_kept": 3}, "of 2 streamed blocks .* 3 are to be kept"),
        ({"stream_kept": -1}, "-1 are to be kept"),
    ],
)
def test_what_cannot_be_streamed(change: dict[str, object], said: str) -> None:
    assert checked(GIVEN) is GIVEN
    with pytest.raises(ArgumentError, match=said):
        checked(replace(GIVEN, **change))  # type: ignore[arg-type]


def test_a_single_token_is_never_streamed() -> None:
    assert first_step(GIVEN) == 40 and first_step(replace(GIVEN, stream_from=1)) == 2
