"""Which launches a model becomes; needs no GPU."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import CASES
from running import load
from tiny import write_tiny

from hybridkern.kernels.cuda import holdings, placement
from hybridkern.kernels.cuda.graphs import Graphs, Piece
from hybridkern.kernels.cuda.holdings import Holdings
from hybridkern.kernels.cuda.launches import home_of
from hybridkern.kernels.interface import Recorder

pytestmark = pytest.mark.on_host


class FakeMemory:
    """Addresses that nothing lies at."""

    top = 1 << 32

    def __init__(self, nbytes: int, what: str = "") -> None:
        self.address, self.nbytes = FakeMemory.top, nbytes
        FakeMemory.top += nbytes

    def free(self) -> None:
        pass


def convert_all(kernels: Any, pieces: Any, progress: Any) -> None:
    """Makes the launches of an upload, and copies nothing."""
    for piece in pieces:
        assert piece.nbytes > 0 and (piece.to if piece.convert is None else piece.convert(1 << 20))


class FakeHostMemory:
    """Memory of the host's own."""

    def __init__(self, nbytes: int, later: Any) -> None:
        self._array = np.zeros(nbytes, np.uint8)
        self.address, self.nbytes = self._array.ctypes.data, nbytes

    def view(self, offset: int, nbytes: int) -> Any:
        return self._array[offset : offset + nbytes]


class NoKernels:
    """Images without any kernel."""

    def has(self, name: str) -> bool:
        return not name


class AllKernels:
    """Images that have every kernel."""

    def has(self, name: str) -> bool:
        return bool(name)


class FakeDevice:
    """A device, a stream and a graph that do nothing."""

    processors, block_memory, kernels, early, handle, capability = 132, 227 << 10, NoKernels(), True, 1, (9, 0)

    def __init__(self, wgmma: bool = False) -> None:
        self.stream, self.wgmma = self, wgmma

    def destroy(self) -> None: ...

    def capture(self, *args: Any) -> FakeDevice:
        return self

    def later(self, *args: Any) -> None: ...
    def upload(self, *args: Any) -> None: ...
    def wait(self) -> None: ...
    def fill(self, *args: Any) -> None: ...
    def launch(self, *args: Any, **options: Any) -> None: ...


def tape_of(monkeypatch: pytest.MonkeyPatch, path: Path, arch: str, *, wgmma: bool = False, **options: Any) -> Graphs:
    monkeypatch.setattr(placement, "Memory", FakeMemory)
    monkeypatch.setattr(placement, "upload", convert_all)
    monkeypatch.setattr(holdings, "HostMemory", FakeHostMemory)
    monkeypatch.setattr(holdings, "Stream", FakeDevice)
    model = load(write_tiny(path / "tiny.gguf", arch, **options).path)
    r = Recorder()
    logits = model.record(r)
    held = Holdings(FakeDevice(wgmma))  # type: ignore[arg-type]
    held.prepare(
        r.ops, logits=logits, n_vocab=logits.width, specs=model.kv_specs, n_pages=4, n_seq=1, max_pages=4, max_rows=200,
        max_outputs=200,
    )  # fmt: skip
    return Graphs(held, [Piece(r.ops)])


@pytest.mark.parametrize("case", list(CASES))
def test_every_architecture_lowers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str) -> None:
    arch, options = CASES[case]
    tape = tape_of(monkeypatch, tmp_path, arch, **options)
    for n in (1, 2, 9, 33, 129):
        assert tape.launches(n)[-1].function == "hk_argmax"


def test_a_decode_block_is_six_launches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What stands behind the last attention takes its input in two parts."""
    names = [x.function for x in tape_of(monkeypatch, tmp_path, "llama", type="Q4_K", n_layer=1).launches(1)]
    assert names == [
        "hk_angles", "hk_embed_q4_k",
        "hk_matvec_q4_k", "hk_heads", "hk_decode64_f16", "hk_matvec2_q4_k", "hk_matvec2_q4_k", "hk_matvec2_q4_k",
        "hk_rows", "hk_matvec2_q4_k", "hk_argmax",
    ]  # fmt: skip


@pytest.mark.parametrize("wgmma", [False, True])
def test_many_tokens_use_the_tensor_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wgmma: bool) -> None:
    """One launch for q, k, v, one for gate and up."""
    tape = tape_of(monkeypatch, tmp_path, "gemma2", wgmma=wgmma, type="Q6_K", n_layer=1, tied=True)
    names = [x.function for x in tape.launches(129)]
    products = [name for name in names if name.startswith("hk_wgmma" if wgmma else "hk_matmul")]
    assert len(products) == 5 and all(name.endswith("_q6_k") for name in products)
    assert "hk_prefill_narrow128_f16" in names


def test_every_kernel_is_in_the_file_that_its_name_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources = Path(__file__).parents[2] / "csrc" / "cuda"
    for type_name in ("F32", "F16", "Q6_K"):
        for wgmma, n in product((False, True), (1, 2, 9, 129)):
            tape = tape_of(monkeypatch, tmp_path, "gemma2", wgmma=wgmma, type=type_name, n_layer=1, tied=True)
            for one in tape.launches(n):
                stem = one.function.split("_")[1].rstrip("0123456789sf")
                assert f"hk_{stem}" in (sources / f"{home_of(one.function)}.cu").read_text()
