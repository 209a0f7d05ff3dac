"""What `hybridkern doctor` says about GPUs: driver, devices, compiler, kernels, and whether models can run there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec

from hybridkern.errors import HybridKernError

from .terminal import size


def gpu_facts() -> Iterator[tuple[str, str]]:
    """(what, fact), one a line. A device is opened last, to say whether it would do."""
    from hybridkern.kernels.cuda import driver
    from hybridkern.kernels.cuda.images import why_not_built
    from hybridkern.kernels.cuda.nvrtc import MAJORS, find_compiler

    version, found = (max(MAJORS), 0), []
    try:
        version = driver.driver_version()
        yield "NVIDIA driver", f"for CUDA {version[0]}.{version[1]}"
        found = driver.gpus()
        for gpu in found:
            high, low = gpu.capability
            yield f"GPU {gpu.number}", f"{gpu.name}, compute capability {high}.{low}, {size(gpu.total_bytes)}"
        if not found:
            yield "GPU", "none"
    except HybridKernError as error:
        yield "NVIDIA driver", str(error)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        yield "CUDA_VISIBLE_DEVICES", repr(hidden)
    yield "pycuda", _version("pycuda") or "not installed"
    yield "nvcc", shutil.which("nvcc") or "not on the path (needed only to build kernels)"
    try:
        compiler = find_compiler(version[0])
        yield "NVRTC", f"{compiler.version[0]}.{compiler.version[1]}, {compiler.path}"
    except HybridKernError as error:
        yield "NVRTC", str(error)
    yield "CUDA kernels of the build", _built()
    unbuilt = [why for gpu in found if (why := why_not_built(gpu.capability, version))]
    yield "models run on", _verdict(len(found), unbuilt)


def _built() -> str:
    from hybridkern.kernels.cuda.images import built_for, image_files

    images = image_files()
    if not images:
        return "none; NVRTC compiles them at first use"
    try:
        code = ", ".join(built_for()) or "what they were made for by hand"
    except HybridKernError as error:
        return str(error)
    return f"{len(images)} images for {code} in {images[0].parent}"


def _verdict(n: int, unbuilt: list[str]) -> str:
    if n == 0:
        return "the CPU: no GPU can be used"
    if unbuilt:
        # Opening the device would compile them now.
        return f"the CPU, and the GPU if NVRTC can compile the kernels ({unbuilt[0]})"
    from hybridkern.kernels.cuda.device import Device

    try:
        for number in range(n):
            Device.get(number)
    except HybridKernError as error:
        return f"the CPU: {error}"
    return "the GPU as far as they fit, and the CPU (-ngl auto)"


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "installed" if find_spec(package) else None
