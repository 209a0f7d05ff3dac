"""What the CPU set makes of recorded operations."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import ARCHITECTURES

from hybridkern.errors import KernelError
from hybridkern.kernels.cpu.fusion import fuse
from hybridkern.kernels.cpu.outputs import select_early
from hybridkern.kernels.interface import Buffer, Op, Recorder, Vector, Weight


def weight(rows: int, cols: int, kind: str = "Q4_K") -> Weight:
    return Weight(f"w{rows}", kind, rows, cols, np.empty((rows, 1), np.uint8))


def test_a_block_is_few_operations(tiny):
    r = Recorder()
    logits = tiny("llama", type="Q4_K", n_head_kv=1).record(r)
    kinds = [f.kind for f in fuse(r.ops, logits)]
    block = ["rmsnorm", "matmul", "heads", "attend", "matmul", "rmsnorm", "matmul", "glu", "matmul"]
    assert kinds == ["angles", "embed", *block, *block, "select", "rmsnorm", "matmul", "argmax"]


def test_inputs_are_quantised_once_per_kind_by_their_producers(tiny):
    r = Recorder()
    logits = tiny("llama", type="Q4_K", n_head_kv=1).record(r)
    assert [len(f.emit) for f in fuse(r.ops, logits) if f.kind in ("rmsnorm", "attend", "glu")] == [1] * 9

    r = Recorder()
    x, h = r.buffer("x", 256), r.buffer("h", 256)
    r.rmsnorm(h, x, None, 1e-5)
    for rows, kind in ((32, "Q4_K"), (48, "Q8_0"), (64, "Q6_K"), (16, "F32")):
        r.matmul(r.buffer(kind, rows), h, weight(rows, 256, kind))
    norm, group = fuse(r.ops)
    assert (norm.kind, group.kind) == ("rmsnorm", "matmul")
    assert [a.kind for a in norm.emit] == [1]  # all quantised formats share one; F32 reads the buffer
    assert len(group.products) == 4


def test_precise_products_have_an_input_of_their_own(tiny):
    r = Recorder()
    x, h = r.buffer("x", 256), r.buffer("h", 256)
    r.rmsnorm(h, x, None, 1e-5)
    for rows, kind, precise in ((32, "Q4_K", True), (64, "Q6_K", True), (16, "F32", True), (48, "Q4_K", False)):
        r.matmul(r.buffer(f"y{rows}", rows), h, weight(rows, 256, kind), precise=precise)
    norm, first, last = fuse(r.ops)
    assert [a.kind for a in norm.emit] == [2, 1]
    assert [[p.out.name for p in f.products] for f in (first, last)] == [["y32", "y64"], ["y16", "y48"]]

    r = Recorder()
    logits = tiny("llama", type="Q4_K").record(r)
    products = [p for f in fuse(select_early(r.ops), logits) for p in f.products]
    assert {p.args[0].rows for p in products if p.params["precise"]} == {"outputs"}
    assert {p.args[0].rows for p in products if not p.params["precise"]} == {"tokens"}


def test_an_input_that_nobody_quantised_gets_an_operation_of_its_own():
    r = Recorder()
    x = r.buffer("x", 512)
    r.matmul(r.buffer("a", 32), x.view(256, 256), weight(32, 256))
    r.matmul(r.buffer("b", 32), x.view(0, 256), weight(32, 256))
    assert [f.kind for f in fuse(r.ops)] == ["quantize", "matmul", "quantize", "matmul"]


def test_a_changed_input_is_quantised_again():
    r = Recorder()
    x = r.buffer("x", 256)
    r.scale(x, x, 2.0)
    r.matmul(r.buffer("a", 32), x, weight(32, 256))
    r.scale(x, x, 3.0)
    r.matmul(r.buffer("b", 32), x, weight(32, 256))
    assert [(f.kind, len(f.emit)) for f in fuse(r.ops)] == [("scale", 1), ("matmul", 0), ("scale", 1), ("matmul", 0)]


def test_products_that_share_memory_are_not_grouped():
    r = Recorder()
    x, y = r.buffer("x", 256), r.buffer("y", 256)
    r.matmul(y, x, weight(256, 256))
    r.matmul(y, x, weight(256, 256), add=y)
    assert [f.kind for f in fuse(r.ops)][-2:] == ["matmul", "matmul"]
    with pytest.raises(KernelError, match="its own input"):
        r.matmul(x, x, weight(256, 256))
        fuse(r.ops)


def test_barriers_stand_only_where_memory_is_shared():
    r = Recorder()
    a, b, c, d = (r.buffer(n, 64) for n in "abcd")
    r.scale(b, a, 2.0)
    r.scale(c, a, 3.0)  # reads the same
    r.scale(d, b, 2.0)  # reads what was written
    r.scale(a, a, 2.0)  # independent of d = b
    r.scale(b, c, 2.0)  # writes what d's operation reads
    assert [f.sync for f in fuse(r.ops)] == [False, False, True, False, True]


def test_unknown_operations_are_refused():
    r = Recorder()
    r._record("fly", Buffer("x", 1), Vector("v", np.zeros(1)))
    with pytest.raises(KernelError, match="'fly'"):
        fuse(r.ops)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_rows_without_outputs_are_left_out(tiny, arch):
    r = Recorder()
    logits = tiny(arch).record(r)
    ops = select_early(r.ops)
    last = max(i for i, op in enumerate(ops) if op.kind == "attend")
    assert ops[: last + 1] == r.ops[: last + 1]
    behind = ops[last + 1 :]
    assert [op.kind for op in behind[:3]] == ["select", "select", "matmul"]
    assert all(b.rows == "outputs" for op in behind[2:] for b in (op.out, *op.args) if isinstance(b, Buffer))
    assert {op.args[0].name for op in behind[:2]} == {"attended", "x"}
    assert any(op.out is logits for op in behind)
    assert [op.kind for op in behind[2:]] == [
        op.kind for op in r.ops[last + 1 :] if op.kind not in ("select", "observe")
    ]


def test_what_is_not_row_by_row_keeps_the_selection_where_it_is(tiny):
    r = Recorder()
    tiny("llama").record(r)
    at = [op.kind for op in r.ops].index("select")
    observed = [*r.ops[:at], Op("observe", r.ops[at].args[0], (r.ops[at].args[0],), {"name": "x"}), *r.ops[at:]]
    assert select_early(observed) == observed
    again = [*r.ops, Op("scale", r.ops[at].args[0], (r.ops[at].args[0],), {"factor": 2.0})]  # of the tokens' rows
    assert select_early(again) == again
