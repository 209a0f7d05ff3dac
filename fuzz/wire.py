"""GGUF files as lists that a mutator can change: read leniently, written with every field's place remembered.

Nothing of the package is used, so that the fuzzer and the reader cannot share a mistake.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
WIDTH = {U8: 1, I8: 1, U16: 2, I16: 2, U32: 4, I32: 4, F32: 4, BOOL: 1, U64: 8, I64: 8, F64: 8}
CODE = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
# Type id -> (weights, bytes) of a block, of the types that files hold.
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 16: (256, 66), 20: (32, 18), 23: (256, 136),
    24: (1, 1), 26: (1, 4), 28: (1, 8), 30: (1, 2), 39: (32, 17),
}  # fmt: skip
SPLIT = b"PARTS"  # an input that begins with this holds several files, each behind its length in 32 bits


@dataclass
class Array:
    """An array value: the type of its elements, and each as a value."""

    element: int
    items: list[Any]


@dataclass
class Key:
    """A metadata key. value: the bytes of a number or a string, or an Array."""

    name: bytes
    type: int
    value: Any


@dataclass
class Tensor:
    """A line of the tensor table; dims as the file lists them, offset from the start of the data."""

    name: bytes
    dims: list[int]
    type: int
    offset: int = 0


@dataclass
class File:
    """A whole file. fields: after `write`, (offset, size) of every count, length, type, dimension and number."""

    keys: list[Key]
    tensors: list[Tensor]
    data: bytes = b""
    version: int = 3
    fields: list[tuple[int, int]] = field(default_factory=list)


def number(type_: int, value: Any) -> bytes:
    """A number of that value type."""
    return struct.pack("<" + CODE[type_], value)


def key(name: str, type_: int, value: Any) -> Key:
    """A key with a Python value; an array's is (element type, list)."""
    return Key(name.encode(), type_, _value(type_, value))


def _value(type_: int, value: Any) -> Any:
    if type_ == STRING:
        return value if isinstance(value, bytes) else value.encode()
    if type_ == ARRAY:
        return Array(value[0], [_value(value[0], item) for item in value[1]])
    return number(type_, value)


class _Reader:
    def __init__(self, raw: bytes, at: int) -> None:
        self.raw, self.at = raw, at

    def take(self, n: int) -> bytes:
        if n > len(self.raw) - self.at:
            raise ValueError
        self.at += n
        return self.raw[self.at - n : self.at]

    def u32(self) -> int:
        return struct.unpack("<I", self.take(4))[0]

    def u64(self) -> int:
        return struct.unpack("<Q", self.take(8))[0]

    def value(self, type_: int, depth: int = 0) -> Any:
        if type_ == STRING:
            return self.take(self.u64())
        if type_ == ARRAY and depth < 9:
            element, count = self.u32(), self.u64()
            if element in WIDTH:
                width = WIDTH[element]
                raw = self.take(count * width)
                return Array(element, [raw[i : i + width] for i in range(0, len(raw), width)])
            if count > len(self.raw):
                raise ValueError
            return Array(element, [self.value(element, depth + 1) for _ in range(count)])
        if type_ not in WIDTH:
            raise ValueError
        return self.take(WIDTH[type_])


def parse(raw: bytes) -> File | None:
    """The file, or None where its structure cannot be followed."""
    if raw[:4] != b"GGUF":
        return None
    r = _Reader(raw, 4)
    try:
        version, n_tensors, n_keys = r.u32(), r.u64(), r.u64()
        if n_tensors + n_keys > len(raw):
            return None
        keys, tensors = [], []
        for _ in range(n_keys):
            name, type_ = r.take(r.u64()), r.u32()
            keys.append(Key(name, type_, r.value(type_)))
        for _ in range(n_tensors):
            name, n = r.take(r.u64()), r.u32()
            dims = [r.u64() for _ in range(min(n, 8))]
            tensors.append(Tensor(name, dims, r.u32(), r.u64()))
    except (ValueError, struct.error):
        return None
    start = -(-r.at // 32) * 32
    return File(keys, tensors, raw[start:], version)


class _Writer:
    def __init__(self) -> None:
        self.out = bytearray(b"GGUF")
        self.fields: list[tuple[int, int]] = []

    def put(self, code: str, value: int) -> None:
        packed = struct.pack("<" + code, value)
        self.fields.append((len(self.out), len(packed)))
        self.out += packed

    def string(self, text: bytes) -> None:
        self.put("Q", len(text))
        self.out += text

    def value(self, type_: int, value: Any) -> None:
        if isinstance(value, Array):
            self.put("I", value.element)
            self.put("Q", len(value.items))
            if value.element in WIDTH:
                self.out += b"".join(item for item in value.items if isinstance(item, bytes))
            else:
                for item in value.items:
                    self.value(value.element, item)
        elif type_ == STRING:
            self.string(value)
        else:
            self.fields.append((len(self.out), len(value)))
            self.out += value


def write(file: File, alignment: int = 32) -> bytearray:
    """The bytes of a file; `file.fields` then says where its fields lie."""
    w = _Writer()
    w.put("I", file.version & 0xFFFFFFFF)
    w.put("Q", len(file.tensors))
    w.put("Q", len(file.keys))
    for k in file.keys:
        w.string(k.name)
        w.put("I", k.type)
        w.value(k.type, k.value)
    for t in file.tensors:
        w.string(t.name)
        w.put("I", len(t.dims))
        for n in t.dims:
            w.put("Q", n)
        w.put("I", t.type)
        w.put("Q", t.offset)
    w.out += bytes(-len(w.out) % alignment)
    w.out += file.data
    file.fields = w.fields
    return w.out


def nbytes(t: Tensor) -> int | None:
    """Bytes of a tensor's data, None where its shape or type make no sense."""
    block, size = BLOCKS.get(t.type, (0, 0))
    if not block or not t.dims or not all(0 < n < 1 << 20 for n in t.dims) or t.dims[0] % block:
        return None
    total = t.dims[0] // block * size
    for n in t.dims[1:]:
        total *= n
    return total


def lay_out(file: File, limit: int = 1 << 12) -> None:
    """Put the tensors one behind the other, with data of the length that they need, up to a limit."""
    at = 0
    for t in file.tensors:
        size = nbytes(t)
        if size is not None and at + size <= limit:
            t.offset, at = at, -(-(at + size) // 32) * 32
    pattern = (file.data or b"\x3c")[: 1 << 12]
    file.data = (pattern * (at // len(pattern) + 1))[:at]


def parts_of(raw: bytes) -> list[bytes]:
    """The files of an input."""
    if not raw.startswith(SPLIT):
        return [raw]
    parts, at = [], len(SPLIT)
    while at + 4 <= len(raw) and len(parts) < 8:
        n = int.from_bytes(raw[at : at + 4], "little")
        parts.append(raw[at + 4 : at + 4 + n])
        at += 4 + n
    return parts or [b""]


def joined(parts: list[bytes]) -> bytes:
    """The input that holds several files."""
    return SPLIT + b"".join(len(p).to_bytes(4, "little") + bytes(p) for p in parts)
