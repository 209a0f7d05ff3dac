"""Install what the GPU needs on a machine with NVIDIA's driver and no CUDA toolkit: pycuda, and NVRTC.

pycuda comes as source. It is compiled against header files from pip, which are thrown away afterwards, and a stand-in
for the driver's library. With a toolkit (nvcc on the PATH), `pip install pycuda` does the same.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hybridkern.errors import ArgumentError, HybridKernError, KernelError

from .terminal import note

# CUDA's major version -> wheels with headers, where those lie in them, and the wheel with NVRTC
_HEADERS = {
    13: (("nvidia-cuda-runtime>=13,<14", "nvidia-cuda-profiler-api>=13,<14"), ("nvidia/cu13/include",)),
    12: (
        ("nvidia-cuda-runtime-cu12>=12,<13", "nvidia-cuda-profiler-api-cu12>=12,<13"),
        ("nvidia/cuda_runtime/include", "nvidia/cuda_profiler_api/include"),
    ),
}
_NVRTC = {13: "nvidia-cuda-nvrtc>=13,<14", 12: "nvidia-cuda-nvrtc-cu12>=12,<13"}
_PIP = (sys.executable, "-m", "pip", "install")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument(
        "--cuda", type=int, choices=sorted(_HEADERS), help="CUDA's major version (default: the driver's)"
    )
    parser.add_argument("--force", action="store_true", help="build pycuda although it is installed")
    parser.add_argument("--dry-run", action="store_true", help="print the commands instead of running them")
    parser.add_argument("-v", "--verbose", action="store_true", help="tracebacks with errors")


def run(args: argparse.Namespace) -> int:
    """Carry out what is missing."""
    major = args.cuda or _driver_major()
    if args.force or importlib.util.find_spec("pycuda") is None:
        with tempfile.TemporaryDirectory(prefix="hybridkern-cuda-") as folder:
            note(f"building pycuda for CUDA {major}; this takes some minutes")
            for words, extra in pycuda_commands(major, Path(folder), args.force):
                _carry_out(words, extra, args.dry_run)
    else:
        note("pycuda is installed already (--force builds it again)")
    if args.dry_run or not _has_nvrtc(major):
        _carry_out((*_PIP, _NVRTC[major]), {}, args.dry_run)
    if not args.dry_run:
        note("done; `hybridkern doctor` says what the GPU can do, `hybridkern-generate -ngl all` uses it")
    return 0


def pycuda_commands(major: int, folder: Path, force: bool) -> list[tuple[tuple[str, ...], dict[str, str]]]:
    """(command, environment) in order: headers, a library to link with, pycuda."""
    compiler = next((found for name in ("cc", "gcc") if (found := shutil.which(name))), None)
    if compiler is None or not any(map(shutil.which, ("c++", "g++"))):
        raise ArgumentError(
            "pycuda is compiled, and there is no C++ compiler: install one (on Debian: apt install g++)"
        )
    wheels, includes = _HEADERS[major]
    headers, source, library = folder / "headers", folder / "none.c", folder / "libcuda.so"
    source.write_text("/* the driver's library has what pycuda calls; linking only needs its name */\n")
    environment = {
        "CPATH": os.pathsep.join(str(headers / at) for at in includes),
        "LIBRARY_PATH": str(folder),
        "LDFLAGS": "-Wl,--no-as-needed",  # or the linker drops a library that has nothing
    }
    again = ("--force-reinstall", "--no-cache-dir", "--no-deps") if force else ()
    # curand's part of pycuda would need its library at run time.
    settings = ("--config-settings", "--global-option=--conf:CUDA_ENABLE_CURAND=False")
    return [
        ((*_PIP, "--quiet", "--no-deps", "--target", str(headers), *wheels), {}),
        ((compiler, "-shared", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(source)), {}),
        ((*_PIP, "pycuda", *again, *settings), environment),
    ]


def _carry_out(words: Sequence[str], extra: Mapping[str, str], dry_run: bool) -> None:
    shown = shlex.join([f"{name}={value}" for name, value in extra.items()] + list(words))
    if dry_run:
        sys.stdout.write(f"{shown}\n")
        return
    note(shown)
    for name, value in extra.items():
        if name != "LDFLAGS" and os.environ.get(name):
            extra = {**extra, name: value + os.pathsep + os.environ[name]}
    status = subprocess.run(words, env={**os.environ, **extra}, check=False).returncode
    if status:
        raise HybridKernError(f"this command failed with status {status}: {shown}")


def _driver_major() -> int:
    from hybridkern.kernels.cuda.driver import driver_version

    try:
        version = driver_version()
    except KernelError as error:
        raise ArgumentError(f"{error}. To prepare a machine without one, say for which CUDA: --cuda 13") from error
    if version[0] < min(_HEADERS):
        raise ArgumentError(
            f"the driver serves CUDA {version[0]}.{version[1]}, and CUDA 12 is needed: renew the driver"
        )
    return min(version[0], max(_HEADERS))


def _has_nvrtc(major: int) -> bool:
    from hybridkern.kernels.cuda.nvrtc import find_compiler

    try:
        return find_compiler(major) is not None
    except KernelError:
        return False
