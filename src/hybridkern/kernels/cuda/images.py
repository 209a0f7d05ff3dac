"""Images of the kernels: those that the build made, or, where it made none that fits, compiled once and kept.

A build with nvcc leaves one image per source file, and `images.json`, which says for what. Every build leaves the
sources: NVRTC compiles them at first use into the user's cache, a file per source, architecture and compiler.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from hybridkern.errors import KernelError

from .driver import BUILT
from .nvrtc import Compiler, find_compiler

Say = Callable[[str], None]
MANIFEST = "images.json"
# NVRTC takes a lambda for a function of the host unless it is told that there is none.
_OPTIONS = ("-std=c++17", "-diag-suppress=177", "-default-device")
_DIGEST = 32  # bytes of SHA-256 behind each image in the cache


def image_folder() -> Path:
    """Of this build, or HYBRIDKERN_CUDA_IMAGES."""
    folder = os.environ.get("HYBRIDKERN_CUDA_IMAGES")
    return Path(folder) if folder else BUILT


def image_files() -> list[Path]:
    """The compiled kernels of this build, or those of the folder HYBRIDKERN_CUDA_IMAGES."""
    at = image_folder()
    return sorted([*at.glob("*.fatbin"), *at.glob("*.cubin")])


def source_files() -> list[Path]:
    """The kernels' sources, one per image."""
    return sorted((BUILT / "csrc" / "cuda").glob("*.cu"))


def fits(built_for: Sequence[str], capability: tuple[int, int]) -> bool:
    """Whether a GPU runs code for one of these: "sm_90a" runs on 9.0 only, "sm_80" on 8.x, "compute_80" (PTX) from 8.0
    on."""
    major, minor = capability
    for name in built_for:
        kind, _, number = name.partition("_")
        digits = number.rstrip("af")
        code = int(digits[:-1]), int(digits[-1])
        if digits != number:
            same = code == (major, minor)
        else:
            same = code <= (major, minor) if kind == "compute" else code[0] == major and code[1] <= minor
        if same:
            return True
    return False


def _manifest() -> dict[str, Any]:
    """What the build says of its images, {} for images that were made by hand."""
    try:
        facts: dict[str, Any] = json.loads((image_folder() / MANIFEST).read_text())
        int(str(facts["compiler"]).split(".")[0])
        fits([str(code) for code in facts["code"]], (0, 0))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KernelError(f"{MANIFEST} of this build cannot be read ({error})") from error
    return facts


def built_for() -> list[str]:
    """What the images of this build are for, as "sm_90a" or "compute_80"."""
    return [str(code) for code in _manifest().get("code", [])]


def why_not_built(capability: tuple[int, int], driver: tuple[int, int]) -> str:
    """Why the images of this build cannot be used, or an empty text."""
    if not image_files():
        return "this build has no compiled kernels"
    try:
        facts = _manifest()
    except KernelError as error:
        return str(error)
    if not facts:
        return ""
    if int(str(facts["compiler"]).split(".")[0]) > driver[0]:
        return f"the kernels of this build were made by CUDA {facts['compiler']}, and the driver serves {driver[0]}"
    if not fits(built_for(), capability):
        return f"the kernels of this build are for {', '.join(built_for())}"
    return ""


def load_images(capability: tuple[int, int], driver: tuple[int, int], say: Say | None = None) -> dict[str, bytes]:
    """The images that a GPU with this compute capability and driver runs, by the name of their source file.

    say: is told what takes time; without it, a warning is. KernelError where there are none and none can be made.
    """
    why = why_not_built(capability, driver)
    if not why:
        return {f.stem: f.read_bytes() for f in image_files()}
    try:
        return compile_all(capability, find_compiler(driver[0], capability[0] * 10 + capability[1]), say)
    except KernelError as error:
        major, minor = capability
        raise KernelError(
            f"{why}, and they could not be compiled for sm_{major}{minor}: {error}. With nvcc, install again with "
            f"-C cmake.define.HYBRIDKERN_CUDA=ON -C cmake.define.HYBRIDKERN_CUDA_ARCHITECTURES={major}{minor}"
        ) from error


def architecture_of(capability: tuple[int, int]) -> str:
    """The name that gives the compiler all of a GPU's instructions."""
    number = capability[0] * 10 + capability[1]
    return f"sm_{number}a" if number == 90 else f"sm_{number}"


def compile_all(
    capability: tuple[int, int],
    compiler: Compiler,
    say: Say | None = None,
    sources: Sequence[Path] | None = None,
    folder: Path | None = None,
) -> dict[str, bytes]:
    """Every source's image, from the cache or compiled, several at once."""
    files = source_files() if sources is None else sources
    if not files:
        raise KernelError(f"the kernels' sources are not in {BUILT / 'csrc'}: install hybridkern again")
    say = say or _warn
    at, arch = folder or cache_folder(), architecture_of(capability)
    made, missing = {}, []
    for source in files:
        path = at / _cache_name(source, arch, compiler)
        image = _cached(path)
        if image is None:
            missing.append((source, path))
        else:
            made[source.stem] = image
    if not missing:
        return made
    version = f"NVRTC {compiler.version[0]}.{compiler.version[1]}"
    say(
        f"compiling {len(missing)} files of CUDA kernels for {arch} with {version}; this is done once, and takes a "
        "minute or two"
    )
    options = [f"--gpu-architecture={arch}", *_OPTIONS]
    missing.sort(key=lambda one: -one[0].stat().st_size)  # the longest first
    unkept = ""
    with ThreadPoolExecutor(min(len(missing), len(os.sched_getaffinity(0)))) as pool:
        jobs = {pool.submit(compiler.compile, source, options): (source, path) for source, path in missing}
        try:
            for n, job in enumerate(as_completed(jobs), 1):
                source, path = jobs[job]
                made[source.stem] = job.result()
                unkept = _keep(path, made[source.stem]) or unkept
                say(f"compiled {source.name} ({n} of {len(missing)})")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if unkept:
        say(f"the compiled kernels could not be kept, so the next start compiles them again: {unkept}")
    return made


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def cache_folder() -> Path:
    """Where compiled kernels are kept: the user's cache (XDG_CACHE_HOME, or ~/.cache)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "hybridkern" / "cuda"


def _cache_name(source: Path, arch: str, compiler: Compiler) -> str:
    """Names everything that an image depends on."""
    key = hashlib.sha256(repr((_OPTIONS, compiler.version)).encode())
    around = [*source.parent.glob("*.cuh"), *source.parent.glob("*.h"), *source.parent.parent.glob("formats/*.def")]
    for file in [source, *sorted(around)]:
        key.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return f"{source.stem}-{arch}-{key.hexdigest()[:32]}.cubin"


def _cached(path: Path) -> bytes | None:
    """An image of the cache; None where there is none, or not the whole of it."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    image, digest = data[:-_DIGEST], data[-_DIGEST:]
    return image if image and hashlib.sha256(image).digest() == digest else None


def _keep(path: Path, image: bytes) -> str:
    """Put an image into the cache, whole or not at all. Returns why that failed, or ""."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            temporary = file.name
            file.write(image + hashlib.sha256(image).digest())
        os.replace(temporary, path)
        temporary = ""
    except OSError as error:
        return str(error)
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
    return ""
