"""NVRTC, CUDA's compiler as a library: found in a wheel of pip, a toolkit or the system. It needs no GPU."""

from __future__ import annotations

import ctypes as c
import importlib.util
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hybridkern.errors import KernelError

MAJORS = (13, 12)  # the versions that are known to compile the kernels, the newer first
_WHEELS = {13: "nvidia/cu13/lib", 12: "nvidia/cuda_nvrtc/lib"}


class Compiler:
    """One libnvrtc. version: (major, minor); architectures: the compute capabilities it compiles for, as 75 or 120."""

    def __init__(self, library: Any, path: str) -> None:
        self._library, self.path = library, path
        library.nvrtcGetErrorString.restype = c.c_char_p
        major, minor, n = c.c_int(), c.c_int(), c.c_int()
        self._call("nvrtcVersion", c.byref(major), c.byref(minor))
        self.version = major.value, minor.value
        self._call("nvrtcGetNumSupportedArchs", c.byref(n))
        known = (c.c_int * n.value)()
        self._call("nvrtcGetSupportedArchs", known)
        self.architectures = tuple(known)

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            why = self._library.nvrtcGetErrorString(status).decode(errors="replace")
            raise KernelError(f"{name} of {self.path} failed: {why}")

    def compile(self, source: Path, options: Sequence[str]) -> bytes:
        """The image of a file, which may include files beside it. KernelError has the first lines of the log."""
        program = c.c_void_p()
        text, name = source.read_bytes(), str(source).encode()
        self._call("nvrtcCreateProgram", c.byref(program), c.c_char_p(text), c.c_char_p(name), c.c_int(0), None, None)
        try:
            words = [o.encode() for o in [*options, f"-I{source.parent}"]]
            try:
                self._call("nvrtcCompileProgram", program, c.c_int(len(words)), (c.c_char_p * len(words))(*words))
            except KernelError as error:
                log = "\n".join(self._get("ProgramLog", program).decode(errors="replace").splitlines()[:12])
                raise KernelError(f"{source.name} cannot be compiled ({' '.join(options)}): {error}\n{log}") from error
            return self._get("CUBIN", program)
        finally:
            self._library.nvrtcDestroyProgram(c.byref(program))

    def _get(self, what: str, program: c.c_void_p) -> bytes:
        size = c.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, c.byref(size))
        text = c.create_string_buffer(max(1, size.value))
        self._call(f"nvrtcGet{what}", program, text)
        return text.raw[: size.value] if what == "CUBIN" else text.value


def _places(major: int) -> Iterator[str]:
    """Where a libnvrtc of that version may be: the wheel, a toolkit, what the system's loader knows."""
    name = f"libnvrtc.so.{major}"
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        yield str(Path(root).parent / _WHEELS[major] / name)
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if root:
            yield str(Path(root) / "lib64" / name)
    yield name


@cache
def _open(path: str) -> Compiler | str:
    """The compiler, or why not."""
    if os.sep in path and not Path(path).is_file():
        return ""
    try:
        return Compiler(c.CDLL(path), path)
    except (OSError, AttributeError, KernelError) as error:
        return str(error)


def find_compiler(newest: int, architecture: int | None = None) -> Compiler:
    """The newest one whose major version is at most `newest` (the driver loads nothing newer) and that knows the
    architecture. KernelError says what was found instead, and what to install."""
    seen = []
    given = os.environ.get("HYBRIDKERN_NVRTC")
    for major in MAJORS:
        for path in [given] if given else _places(major):
            made = _open(path)
            if isinstance(made, str):
                if given:
                    seen.append(f"{path}: {made or 'there is no such file'}")
                continue
            version = f"{made.path} is {made.version[0]}.{made.version[1]}"
            if made.version[0] > newest:
                seen.append(f"{version}, too new for the driver, which serves CUDA {newest}")
            elif architecture is not None and architecture not in made.architectures:
                seen.append(f"{version}, which does not know sm_{architecture}")
            else:
                return made
    wheel = "nvidia-cuda-nvrtc" if newest >= 13 else "nvidia-cuda-nvrtc-cu12"
    found = f" ({'; '.join(dict.fromkeys(seen))})" if seen else ""
    raise KernelError(f"no NVRTC that can be used was found{found}: pip install {wheel}")
