"""Models whose blocks come from main memory in every step, against the same models held by the GPU: to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import CASES, ids_of
from running import batch_of, load
from tiny import write_tiny

from hybridkern.errors import KernelError, OutOfMemoryError
from hybridkern.kernels.cpu.weights import CpuWeights
from hybridkern.kernels.cuda import CudaSet, registration
from hybridkern.kernels.cuda.cuda_set import CudaTape
from hybridkern.kernels.cuda.driver import Memory
from hybridkern.kernels.cuda.ring import AREAS
from hybridkern.kernels.interface import Recorder
from hybridkern.kernels.streamed import HostSource, Streamed, key_of

FORMATS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
TABLE = np.arange(8, dtype=np.int32).reshape(2, 4)


class Model:
    """A tiny model, recorded, with its matrices as rows of the mapped file and as panels."""

    def __init__(self, path: Path, arch: str = "llama", **options: Any) -> None:
        self.loaded = load(write_tiny(path / "tiny.gguf", arch, **options).path)
        r = Recorder()
        self.logits = self.loaded.record(r)
        self.ops = r.ops
        matrices = [op.args[1] for op in r.ops if op.kind == "matmul"]
        names = sorted({int(w.name.split(".")[1]) for w in matrices if w.name.startswith("blk.")})
        self.blocks = [[w for w in matrices if w.name.startswith(f"blk.{b}.")] for b in names]
        self.packed = CpuWeights((w for block in self.blocks for w in block), 1)

    def streamed(self, packed: bool, depth: int, first: int = 0) -> Streamed:
        """The blocks from `first` on."""
        sources = {}
        for w in (w for block in self.blocks[first:] for w in block):
            at = self.packed.place(w)[0] if packed else w.data.ctypes.data
            sources[key_of(w)] = HostSource(at, packed, not packed, self.packed)
        return Streamed(self.blocks[first:], sources, depth)

    def lower(self, streamed: Streamed | None = None, n_pages: int = 8) -> CudaTape:
        return CudaSet().lower(
            self.ops, logits=self.logits, streamed=streamed, specs=self.loaded.kv_specs, n_pages=n_pages, n_seq=2,
            max_pages=4, max_rows=200, max_outputs=200, one_kernel=False,
        )  # fmt: skip

    def check(self, streamed: Streamed) -> None:
        """Prompts of many sizes, what follows them, a second sequence between, the same request again."""
        held, other = self.lower(), self.lower(streamed)
        try:
            for _ in range(2):
                for n, sequence in ((200, 0), (9, 1), (33, 0), (1, 1), (129, 1)):
                    batch = batch_of(ids_of(n, n), sequence=sequence)
                    got, want = other.run(batch, TABLE), held.run(batch, TABLE)
                    assert np.isfinite(want.logits).all() and np.abs(want.logits).max() > 0
                    assert np.array_equal(got.logits, want.logits) and np.array_equal(got.best, want.best)
                    then = batch_of(ids_of(12, n + 1), start=n if n + 12 <= 512 else 0, sequence=sequence)
                    assert np.array_equal(other.run(then, TABLE).logits, held.run(then, TABLE).logits)
        finally:
            other.close()
            held.close()


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "panels"])
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format(device: Any, tmp_path: Path, kind: str, packed: bool) -> None:
    model = Model(tmp_path, type=kind, n_embd=256, n_ff=512, n_layer=3)
    model.check(model.streamed(packed, 2))


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("first", [0, 1, 3])
def test_depths_and_odd_numbers_of_blocks(device: Any, tmp_path: Path, depth: int, first: int) -> None:
    model = Model(tmp_path, type="Q4_K", n_embd=256, n_ff=768, n_layer=5)
    model.check(model.streamed(True, depth, first))


@pytest.mark.parametrize("case", [c for c in CASES if CASES[c][1].get("n_layer", 0) <= 40])
def test_every_architecture(device: Any, tmp_path: Path, case: str) -> None:
    arch, options = CASES[case]
    model = Model(tmp_path, arch, **options)
    model.check(model.streamed(True, 2))


def test_without_registration(device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = registration.call

    def refuse(name: str, *args: Any) -> None:
        if name == "host_register":
            raise KernelError("cuMemHostRegister: CUDA_ERROR_OPERATING_SYSTEM")
        real(name, *args)

    monkeypatch.setattr(registration, "call", refuse)
    model = Model(tmp_path, type="Q6_K", n_embd=256, n_ff=512, n_layer=3)
    model.check(model.streamed(False, 2))
    tape = model.lower(model.streamed(True, 2))
    (stream,) = tape.holdings.streams
    assert "could not be registered" in "\n".join(stream.describe())
    assert stream.host_nbytes == {"page-locked staging": AREAS * stream.layout.area_bytes}
    tape.close()


def test_memory_comes_back(device: Any, tmp_path: Path) -> None:
    model = Model(tmp_path, type="Q4_K", n_embd=256, n_ff=512, n_layer=3)
    before = Memory.live
    for _ in range(3):
        tape = model.lower(model.streamed(True, 2))
        assert sum(tape.holdings.nbytes.values()) == Memory.live - before
        assert {"stream ring", "stream staging"} <= set(tape.holdings.nbytes)
        tape.close()
        assert Memory.live == before
        with pytest.raises(OutOfMemoryError, match="for KV cache"):
            model.lower(model.streamed(True, 2), n_pages=1 << 30)
        assert Memory.live == before  # and main memory can be registered again
