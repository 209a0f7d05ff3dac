"""The way of weights to the device, over a driver that does everything as late as it may."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lazy_driver import LazyDriver

from hybridkern.errors import KernelError
from hybridkern.kernels.cuda import driver, upload
from hybridkern.kernels.cuda.launches import Launch
from hybridkern.kernels.cuda.upload import Piece

pytestmark = pytest.mark.on_host
SIZES = (5, 4096, 70_000, 1, 300_001, 4095, 65_536, 250_000, 12, 99_999)


class Kernels:
    def function(self, name: str, shared: int) -> int:
        return 1


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., LazyDriver]:
    def install(**options: Any) -> LazyDriver:
        monkeypatch.setattr(upload, "_SHARE", options.pop("share", 100_000))
        made = LazyDriver(**options)
        monkeypatch.setattr(driver, "_library", lambda: made)
        monkeypatch.setattr(upload.os, "sched_getaffinity", lambda pid: range(4))
        return made

    return install


def reverse(to: int, nbytes: int, raw: int) -> Launch:
    return Launch("hk_reverse", (1, 1, 1), (1, 1, 1), 0, np.array([raw, to, nbytes], np.uint64))


class Case:
    """A mapped file of pieces, some next to each other, each second one converted (turned round) on the device."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(5)
        data = rng.integers(0, 256, sum(SIZES) * 2 + 100_000, np.uint8)
        (folder / "weights").write_bytes(data.tobytes())
        with (folder / "weights").open("rb") as file:
            self.data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        self.device = np.full(sum(SIZES) * 2, 0xAB, np.uint8)
        self.pieces, self.want = [], np.empty_like(self.device)
        at, to = 37, 0
        for i, size in enumerate(SIZES * 2):
            source, target = self.data.ctypes.data + at, self.device.ctypes.data + to
            part = self.data[at : at + size]
            if i % 2:
                self.pieces.append(Piece(source, size, convert=partial(reverse, target, size)))
                part = part[::-1]
            else:
                self.pieces.append(Piece(source, size, to=target))
            self.want[to : to + size] = part
            at, to = at + size + (9000 if i % 3 == 2 else 0), to + size
        rng.shuffle(self.pieces)  # type: ignore[arg-type]

    def run(self, **options: Any) -> upload.Uploaded:
        return upload.upload(Kernels(), self.pieces, **options)  # type: ignore[arg-type]


def nothing_is_left(made: LazyDriver) -> None:
    assert made.wrong == []
    assert not made.memory and not made.locked and not made.events and not made.streams


@pytest.mark.parametrize(("share", "threads"), [(1 << 30, 1), (700_000, 2), (1000, 4)])
def test_every_piece_arrives(lazy: Callable[..., LazyDriver], tmp_path: Path, share: int, threads: int) -> None:
    made, case = lazy(share=share), Case(tmp_path)
    seen: list[tuple[int, int]] = []
    done = case.run(progress=lambda n, of: seen.append((n, of)))
    assert np.array_equal(case.device, case.want)
    assert done.threads == threads and done.nbytes == len(case.device) and "GB/s" in str(done)
    assert seen[-1] == (done.nbytes, done.nbytes) and seen == sorted(seen)
    assert made.late == len(case.pieces) and made.launches == len(case.pieces) // 2
    nothing_is_left(made)


def test_nothing_to_do(lazy: Callable[..., LazyDriver]) -> None:
    made = lazy()
    assert upload.upload(Kernels(), []).nbytes == 0  # type: ignore[arg-type]
    nothing_is_left(made)


@pytest.mark.parametrize("options", [{"fail_launch": 4}, {"fail_alloc": 1}, {"fail_host": 2}], ids=str)
def test_an_error_leaves_nothing_behind(
    lazy: Callable[..., LazyDriver], tmp_path: Path, options: dict[str, int]
) -> None:
    made, case = lazy(share=700_000, **options), Case(tmp_path)
    with pytest.raises(KernelError, match="as the test asked"):
        case.run()
    nothing_is_left(made)


def test_an_interruption_ends_the_threads_first(lazy: Callable[..., LazyDriver], tmp_path: Path) -> None:
    made, case = lazy(share=700_000), Case(tmp_path)

    def interrupt(n: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        case.run(progress=interrupt)
    nothing_is_left(made)
