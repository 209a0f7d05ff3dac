"""Models split over several files: `name-00001-of-00003.gguf` and so on.

Each part is a GGUF file with the keys `split.no` (counts from 0, file names from 1), `split.count` and
`split.tensors.count` (of all parts together). The first part holds the metadata of the model.
"""

from __future__ import annotations

import os
import re

from hybridkern.errors import GGUFError

from .cursor import shown, shown_path
from .part import Part

_NAME = re.compile(r"(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def _name(stem: str, no: int, count: int) -> str:
    return f"{stem}-{no + 1:05d}-of-{count:05d}.gguf"


def part_count(first: Part) -> int:
    """The number of parts of the model that `first` begins; GGUFError where `first` is not the first part."""
    m = first.metadata
    count = m.get_int("split.count", 1)
    if count in (0, 1):  # merging parts back into one file leaves the key there as 0
        return 1
    no = m.get_int("split.no")
    if not 0 <= no < count:
        raise GGUFError(f"{shown_path(first.path)}: key 'split.no' is {no}, but 'split.count' is {count}")
    if no:
        match = _NAME.fullmatch(first.path)
        name = _name(match["stem"], 0, count) if match else f"its name ends in {_name('', 0, count)}"
        problem = f"is part {no + 1} of {count} of a split model; give the first part: {shown_path(name)}"
        raise GGUFError(f"{shown_path(first.path)}: {problem}")
    return count


def part_paths(first: Part, count: int) -> list[str]:
    """The paths of all parts; GGUFError names the first one that is missing."""
    match = _NAME.fullmatch(first.path)
    if not match or int(match["no"]) != 1 or int(match["count"]) != count:
        problem = f"is the first of {count} parts, so its name must end in {_name('', 0, count)} for the others"
        raise GGUFError(f"{shown_path(first.path)}: {problem} to be found")
    paths = [first.path]
    for no in range(1, count):
        path = _name(match["stem"], no, count)
        if not os.path.lexists(path):
            problem = f"part {no + 1} of {count} is missing: {shown_path(path)} does not exist"
            raise GGUFError(f"{shown_path(first.path)}: {problem}")
        paths.append(path)
    return paths


def check_part(first: Part, part: Part, no: int, count: int) -> None:
    """GGUFError where part number `no` (from 0) does not agree with the first."""
    where, m = shown_path(part.path), part.metadata
    total = first.metadata.get_int("split.tensors.count", None)
    expected = {"split.no": no, "split.count": count, "split.tensors.count": total}
    for key, value in expected.items():
        found = m.get_int(key, None)
        if found != value:
            raise GGUFError(f"{where}: key {key!r} is {found}, but {value} is expected from {shown_path(first.path)}")
    if part.version != first.version:
        raise GGUFError(f"{where}: has version {part.version}, but {shown_path(first.path)} has {first.version}")
    for key in m:
        own = key.startswith("split.") or key == "general.alignment"  # what each part says for itself
        if not own and key in first.metadata and m.raw(key) != first.metadata.raw(key):
            problem = f"at byte {m.offset_of(key)}: differs from the value in {shown_path(first.path)}"
            raise GGUFError(f"{where}: key {shown(key)} {problem}")


def check_total(first: Part, parts: list[Part]) -> None:
    """GGUFError where a tensor is in two parts, or the parts hold more or fewer tensors than they say."""
    owner: dict[str, Part] = {}
    for part in parts:
        for name in part.tensors:
            if name in owner:
                problem = f"tensor {shown(name)} is in {shown_path(owner[name].path)} too"
                raise GGUFError(f"{shown_path(part.path)}: {problem}")
            owner[name] = part
    wanted = first.metadata.get_int("split.tensors.count", None)
    if wanted is not None and wanted != len(owner):
        problem = f"key 'split.tensors.count' is {wanted}, but the {len(parts)} parts hold {len(owner)} tensors"
        raise GGUFError(f"{shown_path(first.path)}: {problem}")
