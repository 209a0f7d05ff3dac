"""Engines with streamed blocks on a GPU, against engines that have everything there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from assignments import CPU, GPU, KEPT, LEAST, STREAMED, streaming
from cases import ids_of
from running import load
from tiny import write_tiny

from hybridkern.errors import OutOfMemoryError
from hybridkern.gguf import GGUFFile
from hybridkern.kernels.cuda.driver import Memory
from hybridkern.kernels.cuda.ring import RING, STAGING
from hybridkern.model import LoadedModel
from hybridkern.runtime.engine import Cancelled, Engine

IDS = ids_of(600)
Make = Callable[..., Engine]


@pytest.fixture
def engine(device: Any) -> Iterator[Make]:
    """engine(model, **options) -> an engine whose free pages are full of NaN; on the GPU unless it is assigned."""
    made: list[Engine] = []

    def make(model: LoadedModel, **options: Any) -> Engine:
        options = {"n_ctx": 1024, "n_seq": 4, "n_kv_pages": 40, "threads": 2} | options
        made.append(Engine(model, **({"device": 0} | options if "assignment" not in options else options)))
        made[-1]._cache.poison()
        return made[-1]

    yield make
    for e in made:
        e.close()


@pytest.mark.parametrize("repack", [True, False], ids=["panels", "rows"])
@pytest.mark.parametrize("case", STREAMED)
def test_streamed_blocks(engine: Make, tmp_path: Path, case: str, repack: bool) -> None:
    """Steps that are streamed give the bits of a GPU that holds everything, as far as it computes the head; what
    follows on the CPU continues them."""
    model = load(write_tiny(tmp_path / "tiny.gguf", "llama", type="Q8_0", n_embd=256, n_ff=512, n_layer=3).path)
    assignment = STREAMED[case](model)
    whole, e = engine(model), engine(model, assignment=assignment, repack=repack)
    exact = assignment.head == GPU and assignment.embedding == GPU and CPU not in assignment.kv
    s, t = whole.new_sequence(), e.new_sequence()
    for _ in range(2):
        for n in (LEAST, 140, 257, 512):
            want, got = whole.evaluate(s, IDS[:n], "all"), e.evaluate(t, IDS[:n], "all")
            assert np.array_equal(got, want) if exact else np.abs(got - want).max() <= 0.05
            for at in (n, n + 1):
                want, got = whole.evaluate(s, IDS[at : at + 1]).copy(), e.evaluate(t, IDS[at : at + 1]).copy()
                assert np.abs(got - want).max() <= 0.1
            whole.truncate(s, 0)
            e.truncate(t, 0)
    nbytes = e.parts[GPU].nbytes  # type: ignore[attr-defined]
    assert nbytes[RING] > 0 and nbytes[STAGING] > 0 and "registered weights" in e.describe()


@pytest.mark.parametrize("case", KEPT)
def test_kept_blocks(engine: Make, tmp_path: Path, case: str) -> None:
    """Small steps in front of all prompts, behind one, and behind one that was left in its middle."""
    model = load(write_tiny(tmp_path / "tiny.gguf", "llama", type="Q8_0", n_embd=256, n_ff=512, n_layer=3).path)
    assignment = KEPT[case](model)
    whole, e = engine(model), engine(model, assignment=assignment)
    exact = case in ("all of the first two", "two FFNs") and len(assignment.kept) == len(assignment.streamed)
    s, t = whole.new_sequence(), e.new_sequence()
    many = e._programs[1][1].program
    for n in (5, 140, LEAST, 300):
        for at, end in ((0, n), (n, n + 1), (n + 1, n + 2), (n + 2, n + 9)):
            want, got = whole.evaluate(s, IDS[at:end], "all"), e.evaluate(t, IDS[at:end], "all")
            assert np.array_equal(got, want) if exact else np.abs(got - want).max() <= 0.1
        whole.truncate(s, 0)
        e.truncate(t, 0)
        many.cancel()
        with pytest.raises(Cancelled):
            e._stepper._replay(e._stepper._slot(), 200, 0, False)
        many.resume()
        h = e.parts[GPU]._holdings  # type: ignore[attr-defined]
        h.native.fill(h.streams[0]._ring, 0xFF, h.streams[0].layout.nbytes[RING])
        assert e._stepper._is_torn


def test_a_common_step_of_two_sequences(engine: Make, tmp_path: Path) -> None:
    model = load(write_tiny(tmp_path / "tiny.gguf", "qwen3", type="Q4_K", n_embd=256, n_ff=512, n_layer=5).path)
    made = []
    for options in ({}, {"assignment": streaming(model, lambda n: True, embedding=GPU, head=GPU)}):
        e = engine(model, **options)
        a, b = e.new_sequence(), e.new_sequence()
        rows = [e.evaluate_many([(a, IDS[i : i + 50]), (b, IDS[300 + i : 340 + i])]) for i in range(0, 200, 50)]
        made.append(np.concatenate(rows))
    assert np.array_equal(*made)


def test_cancelled_in_the_middle(engine: Make, tmp_path: Path) -> None:
    """Steps are left while copies are under way; what comes behind them is right."""
    model = load(write_tiny(tmp_path / "tiny.gguf", "llama", type="F16", n_embd=512, n_ff=2048, n_layer=12).path)
    e = engine(model, assignment=streaming(model, lambda n: True, head=GPU))
    s = e.new_sequence()
    want = e.evaluate(s, IDS[:500], "all").copy()
    for wait in (0.0, 0.001, 0.002, 0.003):
        e.truncate(s, 0)
        stop = threading.Event()

        def cancel(wait: float = wait, stop: threading.Event = stop) -> None:
            time.sleep(wait)
            while not stop.wait(0.0005):
                e.cancel()

        thread = threading.Thread(target=cancel)
        thread.start()
        with pytest.raises(Cancelled):
            for _ in range(300):
                e.evaluate(s, IDS[:500], "none")
                e.truncate(s, 0)
        stop.set()
        thread.join()
        assert e.length(s) == 0
        assert np.array_equal(e.evaluate(s, IDS[:500], "all"), want)


def test_out_of_memory_leaves_nothing(engine: Make, tmp_path: Path) -> None:
    model = load(write_tiny(tmp_path / "tiny.gguf", "llama", type="Q8_0").path)
    assignment = streaming(model, lambda n: True)
    e = engine(model, assignment=assignment)
    live = Memory.live
    with pytest.raises(OutOfMemoryError, match="for KV cache"):
        engine(model, assignment=assignment, n_kv_pages=1 << 28)
    assert Memory.live == live
    assert e.evaluate(e.new_sequence(), IDS[:100]).shape[0] == 1


def test_a_mapped_file_that_is_cut(engine: Make, tmp_path: Path) -> None:
    """Its registered pages stay readable for the GPU; that it was cut is noticed by its size."""
    from hybridkern.errors import GGUFError

    path = write_tiny(tmp_path / "tiny.gguf", "llama", type="F16", n_embd=512, n_ff=2048, n_layer=4).path
    file = GGUFFile.open(path)
    model = LoadedModel.from_gguf(file)
    e = engine(model, file=file, assignment=streaming(model, lambda n: True, embedding=GPU, head=GPU), repack=False)
    s = e.new_sequence()
    want = e.evaluate(s, IDS[:200]).copy()
    with open(path, "r+b") as cut:
        cut.truncate(10000)
    e.truncate(s, 0)
    assert np.array_equal(e.evaluate(s, IDS[:200]), want)
    with pytest.raises(GGUFError, match="cut short"):
        file.check_intact()
    assert CPU in e.parts
