"""How operations are divided between devices, and what crosses; nothing is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from assignments import CPU, GPU, RULES, part_of, ruled, split
from running import load
from tiny import ARCHITECTURES, write_tiny

from hybridkern.errors import KernelError
from hybridkern.kernels.interface import Buffer, Op, Recorder
from hybridkern.model import LoadedModel
from hybridkern.plan.assignment import Assignment
from hybridkern.plan.dataflow import reads, writes
from hybridkern.plan.division import Division, Receive, Segment, Send, divide, whole


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LoadedModel]:
    folder, made = tmp_path_factory.mktemp("tiny"), {}

    def make(arch: str = "llama", **options: Any) -> LoadedModel:
        key = arch, repr(options)
        if key not in made:
            made[key] = load(write_tiny(folder / f"{len(made)}.gguf", arch, **({"n_layer": 4} | options)).path)
        return made[key]

    return make


def divided(model: LoadedModel, assignment: Assignment) -> Division:
    r = Recorder()
    return divide(r.ops, model.record(r), assignment)


def columns(b: Buffer) -> list[tuple[Buffer, int]]:
    return [(b.root, i) for i in range(b.offset, b.offset + b.width)]


def check(division: Division) -> None:
    """Runs the commands over numbers of versions: every device reads the version that a single device would read."""
    held: dict[str, dict[Any, int]] = {d: {} for d in division.devices}
    newest: dict[Any, int] = {}
    flying: dict[Any, dict[Any, int]] = {}
    clock = 0
    for c in division.commands:
        if isinstance(c, Send):
            flying[c.transfer] = {k: held[c.transfer.source][k] for b in c.transfer.parts for k in columns(b)}
            assert all(newest[k] == v for k, v in flying[c.transfer].items()), "an old value is sent"
        elif isinstance(c, Receive):
            held[c.transfer.to].update(flying.pop(c.transfer))
        else:
            assert c.ops
            for op in c.ops:
                for b in reads(op):
                    for k in columns(b):
                        assert held[c.device].get(k) is not None, f"{op.kind} on {c.device} reads {b.name}"
                clock += 1
                for b in writes(op):
                    for k in columns(b):
                        held[c.device][k] = newest[k] = clock if op.kind != "rmsnorm" or op.args[2] else 0
    assert not flying


def at(division: Division, kind: str, *names: str) -> list[str]:
    """Devices of the operations of a kind whose weight, output or block has one of these names."""
    found = []
    for c in division.commands:
        for op in c.ops if isinstance(c, Segment) else ():
            about = [getattr(a, "name", str(getattr(a, "block", ""))) for a in (op.out, *op.args) if a is not None]
            if op.kind == kind and any(n in about for n in names):
                found.append(c.device)
    return found


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_nothing_is_read_that_is_not_there(model_of: Any, arch: str, rule: str) -> None:
    check(divided(model_of(arch), RULES[rule](model_of(arch))))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_random_assignments(model_of: Any, arch: str) -> None:
    model, rng = model_of(arch), np.random.default_rng(0)
    for _ in range(8):
        devices = [CPU, GPU, "cuda1"][: 2 + int(rng.integers(2))]

        def any_of(_: Any, devices: list[str] = devices) -> str:
            return devices[int(rng.integers(len(devices)))]

        a = ruled(model, any_of, kv=any_of, embedding=any_of(0), head=any_of(0))
        d = divided(model, a)
        check(d)
        for w in (w for w in model.weights.matrices() if w.name.startswith("blk.")):
            assert at(d, "matmul", w.name) == [a.tensors[w.name]]
        for i, device in enumerate(a.kv):
            assert at(d, "attend", str(i)) == at(d, "store_kv", str(i)) == [device]
        assert at(d, "matmul", "logits") == [a.head] == [d.head] and at(d, "embed", "x") == [a.embedding]
        assert all(t.source != t.to and 1 <= len(t.parts) <= 4 for t in d.transfers)


def widths(division: Division) -> list[tuple[str, str, list[str]]]:
    return [(t.source, t.to, [b.name for b in t.parts]) for t in division.transfers]


def test_whole_blocks_cross_once(model_of: Any) -> None:
    model = model_of("llama")
    for n in range(6):
        assert widths(divided(model, split(model, n))) == ([] if n == 0 else [(CPU, GPU, ["x" if n > 1 else "last"])])


def test_a_feed_forward_elsewhere_crosses_twice(model_of: Any) -> None:
    for arch in ARCHITECTURES:
        model = model_of(arch)
        rule = lambda name: CPU if part_of(name) == "ffn" else GPU  # noqa: E731
        d = divided(model, ruled(model, rule, embedding=GPU, head=GPU))
        assert [t[:2] for t in widths(d)] == [(GPU, CPU), (CPU, GPU)] * 4
        assert all(t.nbytes(1, 1) == 4 * model.config.n_embd for t in d.transfers)


def test_heads_cross_together(model_of: Any) -> None:
    d = divided(model_of("llama"), RULES["caches on the CPU"](model_of("llama")))
    assert widths(d) == [(GPU, CPU, ["q", "k", "v"]), (CPU, GPU, ["attended"])] * 4
    model = model_of("phi3")
    assert (
        widths(divided(model, RULES["caches on the CPU"](model))) == [(GPU, CPU, ["qkv"]), (CPU, GPU, ["attended"])] * 4
    )


def test_products_with_one_input_part_when_their_weights_do(model_of: Any) -> None:
    model = model_of("llama")
    d = divided(model, ruled(model, lambda n: CPU if "ffn_up" in n else GPU, embedding=GPU, head=GPU))
    assert widths(d) == [(GPU, CPU, ["x"]), (CPU, GPU, ["up"])] * 4
    order = [c for c in d.commands if isinstance(c, Segment)]
    both = [i for i, c in enumerate(order) if c.device == CPU]
    # The GPU is given its half before the CPU begins.
    assert all(order[i - 1].device == GPU and order[i - 1].ops[-1].args[1].name.endswith("gate.weight") for i in both)


def test_rows_without_outputs_stay_behind(model_of: Any) -> None:
    model = model_of("llama")
    d = divided(model, ruled(model, lambda n: GPU if n.startswith("blk.0.") else CPU))
    kinds = [op.kind for c in d.commands if isinstance(c, Segment) for op in c.ops]
    assert kinds.index("select") < len(kinds) - 8  # in front of the last block's feed-forward
    assert d.crossing(512, 1) == 512 * 4 * model.config.n_embd
    assert divided(model, ruled(model, lambda n: CPU, head=GPU)).crossing(512, 1) == 4 * model.config.n_embd


def test_what_is_kept_is_what_is_read_behind_a_segment(model_of: Any) -> None:
    model = model_of("llama")
    d = divided(model, ruled(model, lambda n: CPU if part_of(n) == "ffn" else GPU, embedding=GPU, head=GPU))
    assert {b.name for c in d.commands if isinstance(c, Segment) for b in c.keep} == {"x", "last"}
    d = divided(model, RULES["ffn_up and attn_k on the CPU"](model))
    assert {b.name for c in d.of(GPU) if isinstance(c, Segment) for b in c.keep} == {"x", "q", "v", "gate"}


def test_one_device_is_one_segment(model_of: Any) -> None:
    model = model_of("gemma3")
    r = Recorder()
    logits = model.record(r)
    d = divide(r.ops, logits, split(model, 0))
    assert len(d.commands) == 1 and d.devices == (CPU,)
    assert [op.kind for op in d.ops(CPU)] == [op.kind for op in whole(r.ops, CPU).ops(CPU)]
    assert whole(r.ops, GPU).ops(GPU) == r.ops and whole(r.ops, GPU).head == GPU


def test_values_that_nothing_wrote_are_an_error() -> None:
    r = Recorder()
    a, b, logits = r.buffer("a", 8), r.buffer("b", 8), r.buffer("logits", 8)
    r.ops += [Op("glu", b, (a, a), {"act": "silu"}), Op("softcap", logits, (b,), {"cap": 1.0})]
    with pytest.raises(KernelError, match="columns 0 to 8 of a"):
        divide(r.ops, logits, Assignment({}, (), CPU, CPU, 1))
