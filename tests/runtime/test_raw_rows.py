"""Weights that stay as the file's rows: the bits of packed ones, chosen where memory is short; what loading holds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny import write_tiny

import hybridkern as hk
from hybridkern.kernels.cpu import weights as cpu_weights
from hybridkern.kernels.cpu.selection import runnable, table_named
from hybridkern.kernels.cpu.weights import FORMATS
from hybridkern.runtime import footprint

IDS = np.random.default_rng(1).integers(3, 300, 60)
SHAPE = {"n_embd": 256, "n_head": 4, "head_dim": 64, "n_ff": 512, "context": 1024}


@pytest.mark.parametrize("kind", [f for f in FORMATS if f != "MXFP4"])  # tiny models have none; tests/kernels does
@pytest.mark.parametrize("isa", runnable())
def test_raw_rows_give_the_bits_of_packed_ones(tiny, engine, kind, isa):
    model = tiny("llama", type=kind, **SHAPE)
    packed, raw = (engine(model, cpu=isa, repack=repack) for repack in (True, False))
    assert packed.part._set.raw_bytes == 0 and raw.part._set.raw_bytes > 0 and raw.part._set.weight_bytes <= 64
    sequences = [e.new_sequence() for e in (packed, raw)]
    for start, end in ((0, 40), (40, 41), (41, 43), (43, 46), (46, 50), (50, 60)):
        a, b = (e.evaluate(s, IDS[start:end], "all") for e, s in zip((packed, raw), sequences, strict=True))
        assert a.tobytes() == b.tobytes(), (start, end)


def test_rows_that_are_too_long_are_packed_all_the_same(tiny, engine, monkeypatch):
    model = tiny("llama", type="Q4_K", **SHAPE)
    monkeypatch.setattr(cpu_weights._cpu, "PANEL_SCRATCH", cpu_weights.panel_bytes(model.weights.blocks[0].q))
    e = engine(model, repack=False)
    down = sum(b.down.data.nbytes for b in model.weights.blocks)
    assert down <= e.part._set.weight_bytes < 2 * down and e.part._set.raw_bytes > 0
    other = engine(model)
    assert (
        e.evaluate(e.new_sequence(), IDS, "all").tobytes() == other.evaluate(other.new_sequence(), IDS, "all").tobytes()
    )


class _Source:
    """A file that notes what is given back."""

    def __init__(self, mmap: bool) -> None:
        self.mmap = mmap
        self.read: list[tuple[str, int, int]] = []
        self.gone: list[tuple[str, int, int]] = []

    def prefetch(self, name: str, start: int, nbytes: int) -> None:
        self.read.append((name, start, nbytes))

    def release(self, name: str, start: int, nbytes: int) -> None:
        self.gone.append((name, start, nbytes))


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_everything_packed_is_given_back_once(tiny, engine, monkeypatch, mapped, tied):
    monkeypatch.setattr(cpu_weights, "SLICE_BYTES", 20_000)
    model = tiny("llama", type="Q8_0", tied=tied, **SHAPE)
    source = _Source(mapped)
    e = engine(model, file=source)
    plain = engine(model)
    assert (
        e.evaluate(e.new_sequence(), IDS, "all").tobytes() == plain.evaluate(plain.new_sequence(), IDS, "all").tobytes()
    )
    want = {w.name: w.data.nbytes for w in model.weights.matrices()}
    if not (tied and mapped):  # a table stays; as a head too it is packed only where its rows can be read again
        del want["token_embd.weight"]
    got: dict[str, int] = {}
    for name, start, nbytes in source.gone:
        assert start == got.get(name, 0)
        got[name] = start + nbytes
    assert got == want
    assert len(source.gone) > len(want)
    assert source.read == source.gone[1:]
    assert e.part._set.raw_bytes == (model.weights.embedding.data.nbytes if tied and not mapped else 0)


MEASURE = """
import re, sys
import hybridkern as hk
from hybridkern.runtime import footprint
def held():
    text = open("/proc/self/smaps_rollup").read()
    return [1024 * int(re.search(rf"^{key}: +(\\d+)", text, re.M)[1]) for key in ("Anonymous", "Rss")]
with hk.load(sys.argv[2], threads=1, n_ctx=64):  # what every model takes
    pass
before, peaks = held(), [0, 0]
def note(done, total):
    peaks[:] = [max(a, b - c) for a, b, c in zip(peaks, held(), before)]
with hk.load(sys.argv[1], threads=2, n_ctx=64, n_ubatch=8, mmap=sys.argv[3] == "map", progress=note) as model:
    note(0, 0)
print(*peaks)
"""


@pytest.mark.parametrize("mode", ["map", "read"])
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="no /proc/self/smaps_rollup")
def test_weights_are_in_memory_once_while_they_are_packed(tmp_path, mode):
    path = write_tiny(tmp_path / "big.gguf", "llama", type="Q8_0", **SHAPE | {"n_embd": 2048, "n_ff": 8192}).path
    small = write_tiny(tmp_path / "small.gguf", "llama").path
    size = path.stat().st_size
    assert size > 100 << 20
    run = [sys.executable, "-c", MEASURE, str(path), str(small), mode]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    anonymous, resident = map(int, done.stdout.split())
    assert anonymous <= 1.15 * size + (8 << 20)  # buffers, whatever the size
    # The slices that are packed and read, and what the small model leaves of the interpreter.
    assert resident <= 1.15 * size + 2 * cpu_weights.SLICE_BYTES + (8 << 20)


@pytest.mark.parametrize(
    ("free", "repack", "raw"),
    [
        (1 << 20, None, True),
        (1 << 40, None, False),
        (None, None, False),
        (1 << 20, True, False),
        (1 << 40, False, True),
    ],
)
def test_rows_stay_raw_where_memory_is_short(tmp_path, monkeypatch, recwarn, free, repack, raw):
    path = write_tiny(tmp_path / "m.gguf", "llama", type="Q8_0", **SHAPE).path
    monkeypatch.setattr(footprint, "available_memory", lambda: free)
    with hk.load(path, threads=1, n_ctx=64, repack=repack) as model:
        told = re.search(r"weights: ([\d.]+) MiB packed, ([\d.]+) MiB as they lie in the file", model.describe())
        assert (float(told[2]) > 1.0 > float(told[1])) == raw
        assert np.isfinite(model.logits([1, 2, 3])).all()
    said = [str(w.message) for w in recwarn if "multiplied as they lie" in str(w.message)]
    assert len(said) == (raw and repack is None)


def test_raw_rows_of_a_file_that_is_cut(tmp_path):
    path = write_tiny(tmp_path / "m.gguf", "llama", type="Q8_0", **SHAPE).path
    with hk.load(path, threads=1, n_ctx=64, repack=False) as model:
        model.logits([1, 2, 3])
        with open(path, "r+b") as file:
            file.truncate(8192)
        with pytest.raises(hk.GGUFError, match="cut short"):
            model.logits([1, 2, 3])


def test_which_sets_read_raw_rows():
    for isa in runnable():
        origins = {name: sets[3] for name, sets in table_named(isa).origins().items() if name != "ops"}
        floats = {name: origins.pop(name) for name in ("F32", "F16", "BF16")}
        assert set(floats.values()) == {"none"}
        assert set(origins.values()) == {"none" if isa == "scalar" else "avx2"}
