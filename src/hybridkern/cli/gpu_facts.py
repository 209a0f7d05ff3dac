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
    from hybridkern.kernels.cuda.device import image_files

    n = 0
    try:
        major, minor = driver.driver_version()
        yield "NVIDIA driver", f"for CUDA {major}.{minor}"
        found = driver.gpus()
        n = len(found)
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
    images = image_files()
    yield "CUDA kernels", f"{len(images)} images in {images[0].parent}" if images else "not in this build"
    yield "models run on", _verdict(n)


def _verdict(n: int) -> str:
    if n == 0:
        return "the CPU: no GPU can be used"
    from hybridkern.kernels.cuda.device import Device

    try:
        for number in range(n):
            Device.get(number)
    except HybridKernError as error:
        return f"the CPU: {error}"
    return "the CPU, or with -ngl all the GPU"


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "installed" if find_spec(package) else None
