"""A file that is cut short while it is in use gives an error, never SIGBUS."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from builder import Tensor, build

from hybridkern.errors import GGUFError
from hybridkern.gguf import GGUFFile

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "csrc" / "runtime" / "hk_sigbus.c"
COMPILER = shutil.which("cc") or shutil.which("gcc")

needs_compiler = pytest.mark.skipif(
    COMPILER is None or not SOURCE.exists(), reason="needs a C compiler and the source tree"
)


def compile_c(output: Path, *arguments: str) -> Path:
    command = [COMPILER, "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{SOURCE.parent}", "-pthread"]
    subprocess.run([*command, str(SOURCE), *arguments, "-o", str(output)], check=True)
    return output


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """The handler as a shared library."""
    return compile_c(tmp_path_factory.mktemp("guard") / "libguard.so", "-fPIC", "-shared")


# Stands in for the extension module, whose guard functions are these three calls.
_PRELUDE = """
import ctypes, os, sys, types, gc
import hybridkern.kernels
c = ctypes.CDLL(sys.argv[1])
c.hk_guard_add.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
cpu = types.ModuleType("hybridkern.kernels._cpu")
cpu.guard_add, cpu.guard_remove, cpu.guard_faulted = c.hk_guard_add, c.hk_guard_remove, c.hk_guard_faulted
sys.modules["hybridkern.kernels._cpu"] = hybridkern.kernels._cpu = cpu
from hybridkern.errors import GGUFError
from hybridkern.gguf import GGUFFile, guard, validate_quants
path = sys.argv[2]
assert guard._calls() is cpu
"""


def run_script(library: Path, path: str, body: str, *options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, *options, "-c", _PRELUDE + body, str(library), path]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def large(tmp_path) -> str:
    """Two F32 tensors of ones: `a` of 64 KiB and `b` of 1 MiB."""
    path = tmp_path / "large.gguf"
    tensors = [Tensor(name, 0, (n,), np.ones(n, "<f4").tobytes()) for name, n in (("a", 1 << 14), ("b", 1 << 18))]
    path.write_bytes(build((), tensors).data)
    return str(path)


@needs_compiler
def test_handler_in_c(tmp_path):
    program = compile_c(tmp_path / "guard_program", str(Path(__file__).parent / "guard_program.c"))
    run = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


@needs_compiler
@pytest.mark.parametrize("options", [(), ("-X", "faulthandler")])
def test_cut_while_mapped(library, large, options):
    body = """
file = GGUFFile.open(path)
a, b = file.data("a"), file.data("b")
assert (b.view("<f4") == 1).all()
file.check_intact()
os.truncate(path, 40000)
assert a[:4].tobytes() == b"\\0\\0\\x80\\x3f"
assert not b.any() and not a[-4096:].any()      # zeros, not SIGBUS
os.truncate(path, 1 << 21)                       # grown again: the size alone tells nothing
for call in (file.check_intact, lambda: validate_quants(file)):
    try:
        call()
    except GGUFError as e:
        assert path in str(e) and "cut short while in use" in str(e)
    else:
        sys.exit("no error")
file.close()
del file
gc.collect()
assert not b.any() and c.hk_guard_any_faulted()  # views outlive the file, and so does the guard
del a, b
gc.collect()
assert not c.hk_guard_any_faulted()
print("done")
"""
    run = run_script(library, large, body, *options)
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")


@needs_compiler
def test_many_opens_leave_no_slot(library, large):
    body = """
for _ in range(3000):   # more than there are slots
    with GGUFFile.open(path) as file:
        file.data("a")
slot = c.hk_guard_add(id(c) // 4096 * 4096, 1)
print(slot)
"""
    run = run_script(library, large, body)
    assert (run.returncode, run.stdout) == (0, "0\n"), run.stderr


@needs_compiler
@pytest.mark.parametrize("options", [(), ("-X", "faulthandler")])
@pytest.mark.parametrize("order", ["before", "above", "sent"])
def test_other_faults_still_end_the_process(library, large, options, order):
    """A fault outside the guarded ranges, or a SIGBUS that was sent, must not be swallowed or go round in circles."""
    body = """
import faulthandler, mmap, signal
file = GGUFFile.open(path)
order = "ORDER"
if order == "above":           # another handler on top of ours, then ours on top of that
    faulthandler.enable()
    second = GGUFFile.open(path)
if order == "sent":
    os.kill(os.getpid(), signal.SIGBUS)
    sys.exit("swallowed")
other = mmap.mmap(os.open(path, os.O_RDONLY), 1 << 20, access=mmap.ACCESS_READ)
os.truncate(path, 100)
print(other[1 << 19])
"""
    run = run_script(library, large, body.replace("ORDER", order), *options)
    assert run.returncode == -signal.SIGBUS and run.stdout == ""
    assert ("Fatal Python error: Bus error" in run.stderr) == (bool(options) or order == "above")


def test_shrunk_file_is_noticed_without_the_handler(large):
    with GGUFFile.open(large) as file:
        file.check_intact()
        size = os.path.getsize(large)
        os.truncate(large, size - 64)
        with pytest.raises(GGUFError, match=rf"large\.gguf.*cut short from {size} to {size - 64} bytes"):
            file.check_intact()


def test_cut_before_it_is_read(large):
    with GGUFFile.open(large, mmap=False) as file:
        a = file.data("a")
        os.truncate(large, 70000)
        with pytest.raises(GGUFError, match=r"large\.gguf.*cut short from \d+ to 70000 bytes"):
            file.data("b")
        assert (a.view("<f4") == 1).all()
