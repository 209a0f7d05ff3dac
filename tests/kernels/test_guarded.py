"""The guard pages around the buffers of these tests: what reaches them dies, and what does not, lives."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from guarded import PAGE, at_guard, guarded

READ = """
import ctypes, sys
from guarded import TIGHT, guarded
TIGHT["front"] = {front}
a = guarded({n}, align={align})
ctypes.string_at(a.ctypes.data + {at}, 1)
"""


@pytest.mark.parametrize(
    ("n", "align", "front", "at", "dies"),
    [(100, 1, False, 100, True), (100, 1, False, 99, False), (4096, 64, False, 4096, True), (40, 64, False, 64, True),
     (100, 1, True, -1, True), (100, 1, True, 0, False), (4097, 64, True, -1, True), (4096, 64, False, -1, True)],
)  # fmt: skip
def test_who_reads_outside_dies(n: int, align: int, front: bool, at: int, dies: bool) -> None:
    code = READ.format(n=n, align=align, front=front, at=at)
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=False)
    assert done.returncode == (-signal.SIGSEGV if dies else 0)


@pytest.mark.parametrize("n", [1, 63, 64, 65, PAGE - 1, PAGE, PAGE + 1])
def test_places_and_values(side: str, n: int) -> None:
    a = guarded(n, 7)
    assert a.size == n and a.ctypes.data % 64 == 0 and (a == 7).all()
    if side == "front":
        assert a.ctypes.data % PAGE == 0
        return
    assert 0 <= -(a.ctypes.data + n) % PAGE < 64
    wide = np.arange(6 * 10, dtype=np.int32).reshape(6, 10)[:, :7]
    b = at_guard(wide, 4)
    assert np.array_equal(b, wide) and b.strides == wide.strides and (b.ctypes.data + 5 * 40 + 28) % PAGE == 0
