"""Planned bytes against what the real placement allocates for the same operations, and what the real tape takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from assignments import split
from cases import CASES
from planned import gpu, shape
from running import load
from test_cuda_lowering import AllKernels, FakeDevice, FakeHostMemory, FakeMemory, convert_all
from tiny import write_tiny

from hybridkern.kernels.cuda import holdings, placement
from hybridkern.kernels.cuda.graphs import Crossing, Graphs, Piece
from hybridkern.kernels.cuda.holdings import Holdings
from hybridkern.kernels.cuda.sizing import Limits
from hybridkern.kernels.interface import Recorder
from hybridkern.plan.assignment import Assignment
from hybridkern.plan.division import Receive, Segment, whole
from hybridkern.plan.inventory import Inventory
from hybridkern.plan.sizes import Sizer
from hybridkern.runtime.observing import Observed

N_CTX, N_UBATCH = 700, 200


@pytest.fixture(autouse=True)
def nothing_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "Memory", FakeMemory)
    monkeypatch.setattr(placement, "upload", convert_all)
    monkeypatch.setattr(holdings, "HostMemory", FakeHostMemory)
    monkeypatch.setattr(holdings, "Stream", FakeDevice)
    monkeypatch.setattr(FakeDevice, "kernels", AllKernels())


def allocated(model: Any, sizer: Sizer, a: Assignment, device: str, max_outputs: int) -> dict[str, int]:
    """What a GPU's part of a model takes, by the code that allocates."""
    (division,) = sizer.divisions(a)
    ops = division.ops(device)
    cached = {op.args[1].block for op in ops if op.kind == "attend"}
    held = Holdings(FakeDevice())  # type: ignore[arg-type]
    pages = -(-N_CTX // 128)
    held.prepare(
        ops, logits=sizer.logits if division.head == device else None, n_vocab=sizer.logits.width,
        specs=[s for s in model.kv_specs if s.block in cached], kv_type="f16", n_pages=pages + 16, n_seq=4,
        max_pages=pages, max_rows=a.n_ubatch, max_outputs=max_outputs,
    )  # fmt: skip
    pieces: list[Piece | Crossing] = []
    for c in division.of(device):
        if isinstance(c, Segment):
            pieces.append(Piece(c.ops, c.keep))
        else:
            pieces.append(Crossing(isinstance(c, Receive), [(b, 4096) for b in c.transfer.parts], 64, 128))
            for b in c.transfer.parts:
                held.place.buffer(b)  # as the link of large steps asks
    Graphs(held, pieces, lambda rows: rows <= 8)
    return {what: n for what, n in held.nbytes.items() if n}


def limits() -> Limits:
    d = FakeDevice()
    return Limits(d.processors, d.block_memory, d.capability, d.wgmma)


def sized(model: Any, a: Assignment) -> tuple[Sizer, dict[str, int]]:
    from dataclasses import replace

    sizer = Sizer(model, Inventory.of(model), shape(N_CTX))
    return sizer, sizer.gpu(a, replace(gpu(1000), limits=limits()))


@pytest.mark.parametrize("case", list(CASES))
def test_a_whole_model_to_the_byte(tmp_path: Path, case: str) -> None:
    arch, options = CASES[case]
    model = load(write_tiny(tmp_path / "tiny.gguf", arch, **options).path)
    inventory = Inventory.of(model)
    a = Assignment(
        dict.fromkeys([m.name for m in inventory.matrices()], "cuda0"), ("cuda0",) * len(inventory.blocks), "cuda0",
        "cuda0", N_UBATCH,
    )  # fmt: skip
    sizer, planned = sized(model, a)
    assert planned == allocated(model, sizer, a, "cuda0", min(N_UBATCH, 64))
    assert not sizer.host(a, True)


@pytest.mark.parametrize("n_gpu", [1, 2, 4])
def test_a_model_that_is_observed(tmp_path: Path, n_gpu: int) -> None:
    """Its sums are on the GPU that computes what they are of."""
    model = Observed(head=True).tap(load(write_tiny(tmp_path / "tiny.gguf", "gemma3", n_layer=3).path))
    a = split(model, n_gpu, n_ubatch=N_UBATCH)
    sizer, planned = sized(model, a)
    assert planned == allocated(model, sizer, a, "cuda0", min(N_UBATCH, 64))
    assert planned["observed sums"] >= 8 * 64
    about = sizer.gpu(a, gpu(1000), exact=False)
    assert about["vectors"] >= planned["vectors"] + planned["observed sums"]


@pytest.mark.parametrize("seed", range(40))
def test_any_placement(tmp_path: Path, seed: int) -> None:
    """Not only peak <= planned <= 1.05 x peak + 64 MiB, but to the byte."""
    rng = np.random.default_rng(seed)
    arch, options = CASES[list(CASES)[int(rng.integers(len(CASES)))]]
    options = options | {
        "type": str(rng.choice(["Q4_0", "Q8_0", "F16", "F32", "Q5_1"])),
        "n_layer": int(rng.integers(1, 5)),
    }
    options = {k: v for k, v in options.items() if k not in ("n_ff", "n_head", "n_head_kv")}
    model = load(write_tiny(tmp_path / "tiny.gguf", arch, **options).path)
    inventory = Inventory.of(model)
    split = rng.random()
    place = lambda: "cuda0" if rng.random() < split else "cpu"  # noqa: E731
    whole = {b.index: place() for b in inventory.blocks}
    tensors = {m.name: place() if rng.random() < 0.3 else whole[m.block] for m in inventory.matrices()}
    kv = tuple(place() if rng.random() < 0.3 else whole[b.index] for b in inventory.blocks)
    a = Assignment(tensors, kv, place(), place(), int(rng.choice([1, 7, 64, 200])))
    sizer, planned = sized(model, a)
    peak = allocated(model, sizer, a, "cuda0", min(a.n_ubatch, 64)) if "cuda0" in a.devices else {}
    assert planned == peak
    about = sizer.gpu(a, gpu(1000), exact=False)
    assert about.get("weights") == planned.get("weights")
    assert about.get("buffers", 0) >= 0.97 * planned.get("buffers", 0)


@pytest.mark.parametrize("case", ["llama", "gemma2", "phi3"])
def test_main_memory_to_the_byte(tmp_path: Path, case: str) -> None:
    from hybridkern.kernels.cpu import CpuSet
    from hybridkern.runtime.cpu_part import HostPages
    from hybridkern.runtime.parts import Sizes

    arch, options = CASES[case]
    model = load(write_tiny(tmp_path / "tiny.gguf", arch, **options).path)
    inventory = Inventory.of(model)
    a = Assignment(
        dict.fromkeys([m.name for m in inventory.matrices()], "cpu"), ("cpu",) * len(inventory.blocks), "cpu", "cpu",
        N_UBATCH,
    )  # fmt: skip
    planned = Sizer(model, inventory, shape(N_CTX)).host(a, True)
    r = Recorder()
    logits = model.record(r)
    pages = -(-N_CTX // 128)
    cache = HostPages(model.kv_specs, Sizes(N_UBATCH, 64, pages, 4, pages, "f16", logits.width))
    cpu = CpuSet()
    tape = cpu.lower(r.ops, logits=logits, cache=cache.layout, max_rows=N_UBATCH, max_outputs=64)
    tape.add([c.ops for c in whole(r.ops, "cpu").commands])
    assert planned == {
        "weights": cpu.weight_bytes, "buffers": tape.buffer_bytes, "KV cache": cache.page_bytes * pages
    }  # fmt: skip
