"""Models with streamed blocks, over two CPU sets that pretend to be two devices: see test_hybrid."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from assignments import CPU, KEPT, LEAST, STREAMED, block
from test_hybrid import IDS, Make, divided, requests  # noqa: F401

from hybridkern.kernels.cpu.weights import CpuWeights
from hybridkern.kernels.streamed import key_of
from hybridkern.runtime.engine import Cancelled


@pytest.mark.parametrize("case", STREAMED)
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_streamed_blocks_change_no_bit(tiny: Any, divided: Make, arch: str, case: str) -> None:  # noqa: F811
    """Requests of 1, 2, 33 and 140 tokens, a token behind each, two sequences in a step: both programs, in turns."""
    model = tiny(arch, type="Q4_K", n_layer=3, context=1024, n_ff=512)
    for repack in (True, False):
        want, e = divided(model, None, repack=repack), divided(model, STREAMED[case](model), repack=repack)
        assert requests(e) == requests(want)
        (_, few), (least, many) = e._programs
        assert least == LEAST and e._stepper._program(LEAST - 1) is few.program
        assert e._stepper._program(LEAST) is many.program and e._stepper._program(600) is many.program
        used = {op.args[1].name for op in many.division.ops(CPU) if op.kind == "matmul"}
        assert not any(name.startswith("blk.") for name in used)
        assert any(op.kind == "matmul" for op in few.division.ops(CPU))
        assert f"steps of {LEAST} tokens and more:" in e.describe()


@pytest.mark.parametrize("case", KEPT)
def test_kept_blocks_change_no_bit(tiny: Any, divided: Make, case: str) -> None:  # noqa: F811
    """The same requests, where small steps compute some of the streamed blocks on the other device too."""
    model = tiny("llama", type="Q4_K", n_layer=3, context=1024, n_ff=512)
    assignment = KEPT[case](model)
    want, e = divided(model, None), divided(model, assignment)
    assert requests(e) == requests(want)
    few = e._programs[0][1]
    on_cpu = {op.args[1].name for op in few.division.ops(CPU) if op.kind == "matmul"} & set(assignment.tensors)
    there = {name for name, device in assignment.tensors.items() if device == CPU}
    kept = {name for name in there if block(name) in assignment.kept}
    assert kept and on_cpu == there - kept


def test_a_step_that_fails_is_mended(tiny: Any, divided: Make) -> None:  # noqa: F811
    """Before the next small step, and only then, what a large one leaves is brought again."""
    model = tiny("llama", type="Q4_K", n_layer=3, context=1024)
    e = divided(model, KEPT["two of all"](model))
    calls: list[str] = []
    e._stepper._refills = [lambda: calls.append("refill")]
    s = e.new_sequence()
    e.evaluate(s, IDS[:100])
    e.evaluate(s, IDS[100:101])
    assert not calls  # the prompt left everything there
    e.truncate(s, 50)
    program = e._programs[1][1].program
    program.cancel()
    with pytest.raises(Cancelled):
        e._stepper._replay(e._stepper._slot(), LEAST, 0, False)
    program.resume()
    for _ in range(2):
        assert e.greedy(s, 5) and calls == ["refill"]
    e.evaluate(s, IDS[:100])
    assert calls == ["refill"]


def test_a_refill_that_was_left_ends_before_a_large_step(tiny: Any, divided: Make) -> None:  # noqa: F811
    """Ctrl-C leaves it to the device's thread, which would write into the ring of the step."""
    model = tiny("llama", type="Q4_K", n_layer=3, context=1024)
    e = divided(model, KEPT["two of all"](model))
    calls: list[str] = []

    def interrupted() -> None:
        calls.append("left")
        raise KeyboardInterrupt

    e._stepper._refills = [interrupted]
    s = e.new_sequence()
    with pytest.raises(KeyboardInterrupt):
        e.evaluate(s, IDS[:5])
    e._stepper._refills = [lambda: calls.append("whole")]
    e.evaluate(s, IDS[:100])
    assert calls == ["left", "whole"] and e.length(s) == 100
    e.evaluate(s, IDS[100:105])
    e.evaluate(s, IDS[:100])
    assert calls == ["left", "whole"]


def test_long_prompts_by_ubatch(tiny: Any, divided: Make) -> None:  # noqa: F811
    """Steps of 128 tokens, and a rest that is too small to be streamed."""
    model = tiny("llama", type="Q6_K", n_layer=3, context=1024)
    want, e = divided(model, None), divided(model, STREAMED["the first two"](model), n_ubatch=128)
    s, t = want.new_sequence(), e.new_sequence()
    for n in (128, 129, 160, 161, 530):
        for _ in range(2):
            assert e.evaluate(t, IDS[:n], "all").tobytes() == want.evaluate(s, IDS[:n], "all").tobytes()
            want.truncate(s, 0)
            e.truncate(t, 0)


def test_cancelled_steps(tiny: Any, divided: Make) -> None:  # noqa: F811
    model = tiny("llama", type="Q4_K", n_layer=3, context=1024)
    e = divided(model, STREAMED["all blocks"](model))
    s = e.new_sequence()
    want = e.evaluate(s, IDS[:500], "all").copy()
    e.truncate(s, 0)
    stop = threading.Event()

    def cancel() -> None:
        while not stop.wait(0.002):
            e.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        with pytest.raises(Cancelled):
            for _ in range(200):
                e.evaluate(s, IDS[:500], "all")
                e.truncate(s, 0)
    finally:
        stop.set()
        thread.join()
    assert e.length(s) == 0
    assert e.evaluate(s, IDS[:500], "all").tobytes() == want.tobytes()
    assert e.evaluate(s, IDS[500:503], "all").shape == (3, e.n_vocab)


def test_where_matrices_lie_for_others(tiny: Any) -> None:
    model = tiny("llama", type="Q4_K", n_embd=256, n_ff=512)  # mapped from its file
    w = model.weights.blocks[0].down
    packed, rows = CpuWeights([w], 1).source(w), CpuWeights([w], 1, repack=False).source(w)
    assert packed.packed and not packed.read_only and packed.address != w.data.ctypes.data
    assert not rows.packed and rows.read_only and rows.address == w.data.ctypes.data
    other = CpuWeights([], 1)
    for lies in (packed, rows):
        other.read_elsewhere({key_of(w): lies})
        assert other.place(w) == (lies.address, 0 if lies.packed else w.data.strides[0])


def test_no_second_program_where_steps_are_too_small(tiny: Any, divided: Make) -> None:  # noqa: F811
    model = tiny("llama")
    e = divided(model, STREAMED["all blocks"](model), n_ubatch=LEAST - 1)
    assert len(e._programs) == 1 and e.evaluate(e.new_sequence(), IDS[:100]).shape == (1, e.n_vocab)
