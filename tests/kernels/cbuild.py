"""Compile the CPU kernels into a shared library that tests drive through ctypes, one library per instruction set."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CPU = ROOT / "csrc" / "cpu"
SIMDE = Path("/usr/include/simde/x86/avx512.h")
SHIM = Path(__file__).parent / "simde"  # an immintrin.h that stands in for the compiler's
BASE_FLAGS = ["-std=gnu11", "-O2", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-Werror"]
SANITIZE = os.environ.get("HYBRIDKERN_SANITIZE", "")
SANITIZER = (f"-fsanitize={SANITIZE}", "-fno-sanitize-recover=all", "-g1", "-O0", "-Wno-error") if SANITIZE else ()


def gcc(*args: str) -> None:
    """Run the compiler, with sanitizers where the environment asks for them; it needs none itself."""
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    subprocess.run(["gcc", *args, *SANITIZER], check=True, timeout=600, env=env)


def cmake_flags(isa: str) -> list[str]:
    """The flags of one instruction set, as CMakeLists.txt states them."""
    text = (ROOT / "CMakeLists.txt").read_text()
    found = dict(re.findall(r"set\(HK_ISA_FLAGS_(\w+) ([^)]*)\)", text))
    flags = found[isa].replace('""', "")
    flags = re.sub(r"\$\{HK_ISA_FLAGS_(\w+)\}", lambda m: found[m[1]], flags)
    return flags.split()


def cpu_has(isa: str) -> bool:
    """Whether this machine runs the instruction set natively."""
    need = {
        "scalar": [],
        "avx2": ["avx2", "fma", "f16c"],
        "avx512": ["avx512f", "avx512bw", "avx512dq", "avx512vl"],
    }[isa]
    words = set(Path("/proc/cpuinfo").read_text().split())
    return all(w in words for w in need)


@functools.cache
def build(isa: str, sources: tuple[str, ...]) -> ctypes.CDLL | str:
    """A library of `sources` (relative to csrc/) for one instruction set, or the reason why there is none."""
    if shutil.which("gcc") is None:
        return "no gcc"
    out = Path(tempfile.mkdtemp(prefix="hk-kernels-"))
    flags = cmake_flags(isa)
    if not cpu_has(isa):
        if isa != "avx512" or not SIMDE.exists() or not cpu_has("avx2"):
            return f"this machine has no {isa}, and no SIMDe stands in"
        flags = ["-mavx2", "-mfma", "-mf16c", "-Wno-psabi", "-Wno-error", f"-I{SHIM}"]
    lib = out / f"lib{isa}.so"
    paths = [str(ROOT / "csrc" / s) for s in sources]
    gcc("-shared", "-fPIC", *BASE_FLAGS, *flags, *paths, "-o", str(lib), "-lm")
    return ctypes.CDLL(str(lib))
