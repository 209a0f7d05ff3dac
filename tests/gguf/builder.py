"""Writes small GGUF files, valid or broken on purpose, and remembers where every field lies.

    built = build([("general.architecture", STRING, "llama")], [Tensor("a", 0, (4,), data)])
    bad = built.patch("tensor:a:dim0", "<Q", 0)

Marks: "version", "tensor_count", "kv_count", "metadata"; per key "key:NAME" and ":length", ":type", ":value"
(an array's ":value" is its element type, ":count" its count); "table"; per tensor "tensor:NAME" and ":length",
":n_dims", ":dimN", ":type", ":offset"; "data"; per tensor "data:NAME".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}


@dataclass
class Tensor:
    """A tensor: type id, dims in GGUF order (row length first), its bytes, and an offset to overrule the right one."""

    name: str | bytes
    type_id: int
    dims: Sequence[int]
    data: bytes
    offset: int | None = None


@dataclass
class Built:
    """The bytes of a file and the offset of each of its fields."""

    data: bytes
    marks: dict[str, int]

    def patch(self, mark: str, code: str, *values: Any) -> bytes:
        """The file with the field at `mark` overwritten; `code` as for struct.pack."""
        new = struct.pack(code, *values)
        at = self.marks[mark]
        assert at + len(new) <= len(self.data)
        return self.data[:at] + new + self.data[at + len(new) :]


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


class _Writer:
    def __init__(self, order: str) -> None:
        self.out = bytearray()
        self.marks: dict[str, int] = {}
        self.order = order

    def mark(self, name: str) -> None:
        self.marks[name] = len(self.out)

    def pack(self, code: str, *values: Any) -> None:
        self.out += struct.pack(self.order + code, *values)

    def string(self, text: str | bytes) -> None:
        raw = _bytes(text)
        self.pack("Q", len(raw))
        self.out += raw

    def value(self, type_id: int, value: Any, label: str) -> None:
        if type_id == STRING:
            self.string(value)
        elif type_id == ARRAY:
            element, items = value
            self.pack("I", element)
            self.mark(f"{label}:count")
            self.pack("Q", len(items))
            for item in items:
                self.value(element, item, f"{label}:item")
        else:
            self.pack(_CODES[type_id], value)


def build(
    metadata: Iterable[tuple[str | bytes, int, Any]] = (),
    tensors: Sequence[Tensor] = (),
    *,
    version: int = 3,
    alignment: int = 32,
    order: str = "<",
) -> Built:
    """A GGUF file. An array's value is (element type id, items). `alignment` writes no key: add one to `metadata`."""
    w, pairs = _Writer(order), list(metadata)
    w.out += b"GGUF"
    w.mark("version")
    w.pack("I", version)
    w.mark("tensor_count")
    w.pack("Q", len(tensors))
    w.mark("kv_count")
    w.pack("Q", len(pairs))
    w.mark("metadata")
    for key, type_id, value in pairs:
        label = f"key:{_bytes(key).decode('utf-8', 'replace')}"
        w.mark(f"{label}:length")
        w.string(key)
        w.marks[label] = w.marks[f"{label}:length"] + 8
        w.mark(f"{label}:type")
        w.pack("I", type_id)
        w.mark(f"{label}:value")
        w.value(type_id, value, label)
    w.mark("table")
    at = 0
    places = []
    for t in tensors:
        place = at if t.offset is None else t.offset
        places.append(place)
        label = f"tensor:{_bytes(t.name).decode('utf-8', 'replace')}"
        w.mark(f"{label}:length")
        w.string(t.name)
        w.marks[label] = w.marks[f"{label}:length"] + 8
        w.mark(f"{label}:n_dims")
        w.pack("I", len(t.dims))
        for i, dim in enumerate(t.dims):
            w.mark(f"{label}:dim{i}")
            w.pack("Q", dim)
        w.mark(f"{label}:type")
        w.pack("I", t.type_id)
        w.mark(f"{label}:offset")
        w.pack("Q", place)
        at = -(-(at + len(t.data)) // alignment) * alignment
    w.out += bytes(-len(w.out) % alignment)
    w.mark("data")
    for t, place in zip(tensors, places, strict=True):
        if t.offset is None:
            w.out += bytes(w.marks["data"] + place - len(w.out))
            w.marks[f"data:{_bytes(t.name).decode('utf-8', 'replace')}"] = len(w.out)
            w.out += t.data
    w.out += bytes(-len(w.out) % alignment)
    return Built(bytes(w.out), w.marks)
