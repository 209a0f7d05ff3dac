"""The safetensors files of a folder: which tensors there are, and the values of one at a time.

The `safetensors` library checks each file (header, offsets, length); the values are then read where its header says,
because the library hands bfloat16 to NumPy only through further packages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkern.errors import ArgumentError, ModelError

INDEX = "model.safetensors.index.json"
_BF16_SHIFT = 16
_CODES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@dataclass(frozen=True)
class Source:
    """A tensor of a shard. type: F32, F16 or BF16; shape: (outputs, inputs); begin, end: its bytes in the file."""

    name: str
    path: Path
    type: str
    shape: tuple[int, ...]
    begin: int
    end: int

    def read(self) -> npt.NDArray[np.float32]:
        """The values as float32. Raises ModelError where the file has become shorter, and for NaN and infinity."""
        with open(self.path, "rb") as file:
            file.seek(self.begin)
            data = file.read(self.end - self.begin)
        if len(data) != self.end - self.begin:
            raise ModelError(f"{self.path}: tensor {self.name!r} is cut short: download the file again")
        raw = np.frombuffer(data, _CODES[self.type]).reshape(self.shape)
        if self.type == "BF16":
            values = (raw.astype(np.uint32) << _BF16_SHIFT).view(np.float32)
        else:
            values = raw.astype(np.float32)
        if not np.isfinite(values).all():
            raise ModelError(f"{self.path}: tensor {self.name!r} holds NaN or infinity")
        return values


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds. Raises ModelError where it is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path}: a JSON object is expected, not {type(found).__name__}")
    return found


def sources(folder: Path) -> dict[str, Source]:
    """All tensors of a folder, by name, in the order of its files.

    Raises ArgumentError where the library is missing, ModelError for shards that are missing, damaged, or do not hold
    what the index says.
    """
    where: dict[str, str] | None = None
    if (folder / INDEX).exists():
        where = read_json(folder / INDEX).get("weight_map")
        if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
            raise ModelError(f"{folder / INDEX}: weight_map, from names of tensors to files, is missing")
        paths = [folder / name for name in sorted(set(where.values()))]
    else:
        # The publisher's own format may lie beside it ("consolidated.safetensors").
        whole = folder / "model.safetensors"
        paths = [whole] if whole.exists() else sorted(folder.glob("*.safetensors"))
        if not paths:
            old = sorted(p.name for p in (*folder.glob("*.bin"), *folder.glob("*.pth")))
            hint = f" ({old[0]} is a pickle, which may run code: save the model as safetensors)" if old else ""
            raise ModelError(f"{folder}: holds no *.safetensors file{hint}")
    found: dict[str, Source] = {}
    for path in paths:
        for source in _shard(path):
            if source.name in found:
                raise ModelError(f"tensor {source.name!r} is in {found[source.name].path} and in {path}")
            if where is not None and where.get(source.name) != path.name:
                raise ModelError(f"{path}: tensor {source.name!r} is not what {INDEX} says of this file")
            found[source.name] = source
    for name, shard in (where or {}).items():
        if name not in found:
            raise ModelError(f"{folder / shard}: tensor {name!r} of {INDEX} is missing")
    return found


def _shard(path: Path) -> Iterator[Source]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ArgumentError(f'convert needs safetensors: pip install "hybridkern[convert]" ({error})') from error
    if not path.exists():
        raise ModelError(f"{path}: this shard is missing: download the folder again")
    try:
        with safe_open(path, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: is damaged or cut short ({error}): download it again") from error
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _CODES:
            known = ", ".join(_CODES)
            raise ModelError(f"{path}: tensor {name!r} has the type {entry['dtype']}; known are {known}")
        begin, end = entry["data_offsets"]
        yield Source(name, path, entry["dtype"], tuple(entry["shape"]), 8 + size + begin, 8 + size + end)
