"""The guard pages behind the buffers of these tests: what passes them dies, and what does not, lives."""

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
from guarded import guarded
a = guarded({n}, align={align})
ctypes.string_at(a.ctypes.data + {n} + {past}, 1)
"""


@pytest.mark.parametrize(
    ("n", "align", "past", "dies"), [(100, 1, 0, True), (100, 1, -1, False), (4096, 64, 0, True), (40, 64, 24, True)]
)
def test_who_reads_past_the_end_dies(n: int, align: int, past: int, dies: bool) -> None:
    code = READ.format(n=n, align=align, past=past)
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=False)
    assert done.returncode == (-signal.SIGSEGV if dies else 0)


@pytest.mark.parametrize("n", [1, 63, 64, 65, PAGE - 1, PAGE, PAGE + 1])
def test_places_and_values(n: int) -> None:
    a = guarded(n, 7)
    assert a.size == n and a.ctypes.data % 64 == 0 and (a == 7).all()
    assert 0 <= -(a.ctypes.data + n) % PAGE < 64
    wide = np.arange(6 * 10, dtype=np.int32).reshape(6, 10)[:, :7]
    b = at_guard(wide, 4)
    assert np.array_equal(b, wide) and b.strides == wide.strides and (b.ctypes.data + 5 * 40 + 28) % PAGE == 0
