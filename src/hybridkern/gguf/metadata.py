"""The metadata of a GGUF file: key -> value, checked when the file is opened, decoded when asked for.

Layout (public GGUF specification, versions 2 and 3, little-endian): a key is a string, then a 32-bit value type,
then the value. A string is a 64-bit length and that many bytes. An array is a 32-bit element type, a 64-bit count
and the elements.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hybridkern.errors import GGUFError

from .cursor import Cursor, shown, shown_path

MAX_KEYS = 1 << 16
MAX_KEY_BYTES = 65535  # the specification's limit
MAX_ARRAY_DEPTH = 4
# Strings and inner arrays must be walked one by one, so a file may not have any number of them. The largest
# vocabularies have half a million strings with their merges.
MAX_STRINGS = 1 << 21
MAX_INNER_ARRAYS = 1 << 16
_SMALLEST_ENTRY = 8 + 1 + 4 + 1

STRING, ARRAY, BOOL = 8, 9, 7
# value type id -> (name, NumPy type)
_SCALARS: dict[int, tuple[str, np.dtype]] = {
    0: ("uint8", np.dtype("<u1")),
    1: ("int8", np.dtype("<i1")),
    2: ("uint16", np.dtype("<u2")),
    3: ("int16", np.dtype("<i2")),
    4: ("uint32", np.dtype("<u4")),
    5: ("int32", np.dtype("<i4")),
    6: ("float32", np.dtype("<f4")),
    BOOL: ("bool", np.dtype("?")),
    10: ("uint64", np.dtype("<u8")),
    11: ("int64", np.dtype("<i8")),
    12: ("float64", np.dtype("<f8")),
}
_INTEGERS = frozenset((0, 1, 2, 3, 4, 5, 10, 11))
_FLOATS = frozenset((6, 12))
_U32_U64 = struct.Struct("<IQ")
_U64 = struct.Struct("<Q")

_REQUIRED: Any = object()
Element = Literal["int", "float", "str", "bool"]


def _type_name(type_id: int) -> str:
    return {STRING: "string", ARRAY: "array"}.get(type_id) or _SCALARS[type_id][0]


@dataclass(frozen=True)
class Entry:
    """Where a value lies in the file: the offset of its key, its type id, its first byte and the byte after it."""

    key_offset: int
    type_id: int
    start: int
    end: int


class _Walker:
    """Moves a cursor past values, keeping count of the items that have to be walked one by one."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.left = {STRING: MAX_STRINGS, ARRAY: MAX_INNER_ARRAYS}

    def value(self, type_id: int, what: str, depth: int = 0) -> None:
        c, at = self.cursor, self.cursor.pos
        if type_id in _SCALARS:
            c.need(_SCALARS[type_id][1].itemsize, what)
            if type_id == BOOL and c.buffer[at] > 1:
                raise c.error(what, at, f"holds {c.buffer[at]} as a bool; 0 and 1 are allowed")
        elif type_id == STRING:
            c.string(what)
        elif type_id == ARRAY:
            self.array(what, depth)
        else:
            problem = f"has the unknown value type {type_id} (the file may be newer than this program)"
            raise c.error(what, at - 4, problem)

    def array(self, what: str, depth: int) -> None:
        c, at = self.cursor, self.cursor.pos
        if depth >= MAX_ARRAY_DEPTH:
            raise c.error(what, at, f"arrays are nested deeper than {MAX_ARRAY_DEPTH}")
        element, count = _U32_U64.unpack_from(c.buffer, c.need(12, f"the array header of {what}"))
        if element not in _SCALARS and element not in (STRING, ARRAY):
            problem = f"is an array of the unknown value type {element} (the file may be newer than this program)"
            raise c.error(what, at, problem)
        smallest = {STRING: 8, ARRAY: 12}.get(element) or _SCALARS[element][1].itemsize
        if count > c.left // smallest:
            problem = f"claims an array of {count} {_type_name(element)}, but the file has only {c.left} bytes left"
            raise c.error(what, at, problem)
        if element in _SCALARS:
            start = c.need(count * smallest, what)
            if element == BOOL and count:
                values = np.frombuffer(c.buffer, np.uint8, count, start)
                if (values > 1).any():
                    where = start + int(np.argmax(values > 1))
                    raise c.error(what, where, "holds a bool that is neither 0 nor 1")
                del values  # a bytearray cannot grow while something looks at it
            return
        if count > self.left[element]:
            problem = f"has {count} elements of type {_type_name(element)}; {self.left[element]} more are accepted"
            raise c.error(what, at, problem)
        self.left[element] -= count
        if element == STRING:
            c.skip_strings(count, what)
            return
        for i in range(count):
            self.value(ARRAY, f"element {i} of {what}" if depth == 0 else what, depth + 1)


def read_entries(cursor: Cursor, count: int) -> dict[str, Entry]:
    """Walk `count` metadata entries; raises GGUFError for anything malformed, a key that comes twice included."""
    if count > min(MAX_KEYS, cursor.left // _SMALLEST_ENTRY):
        problem = f"claims {count} metadata keys; {cursor.left} bytes are left in the file, and {MAX_KEYS} keys allowed"
        raise cursor.error("the key count", 16, problem)
    walker = _Walker(cursor)
    entries: dict[str, Entry] = {}
    for i in range(count):
        at = cursor.pos
        key = cursor.name(f"metadata key {i} of {count}", MAX_KEY_BYTES)
        what = f"key {shown(key)}"
        if key in entries:
            raise cursor.error(what, at, f"is there twice, first at byte {entries[key].key_offset}")
        type_id = cursor.u32(f"the value type of {what}")
        start = cursor.pos
        walker.value(type_id, what)
        entries[key] = Entry(at, type_id, start, cursor.pos)
    return entries


class Metadata(Mapping[str, Any]):
    """Read-only mapping of metadata keys to Python values; stays usable after the file is closed.

    Values: int, float, bool, str; arrays of numbers as read-only NumPy arrays of the file's element type (1-D),
    arrays of strings as list[str], arrays of arrays as a list. A value is decoded on first use and kept.
    Strings that are not valid UTF-8 are decoded with `surrogateescape`, so that
    `text.encode("utf-8", "surrogateescape")` gives the bytes of the file back.
    """

    def __init__(self, path: str, buffer: bytearray, entries: dict[str, Entry]) -> None:
        self._path = path
        self._buffer: bytearray | bytes = buffer
        self._entries = entries
        self._values: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            entry = self._entries[key]
            self._values[key] = self._decode(entry.type_id, entry.start)[0]
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def freeze(self, end: int) -> None:
        """Keep an immutable copy of the file's first `end` bytes in place of the buffer that the walk filled."""
        self._buffer = bytes(memoryview(self._buffer)[:end])  # slices of bytes decode faster than those of a bytearray

    def _decode(self, type_id: int, at: int) -> tuple[Any, int]:
        """The value of that type at byte `at`, and the offset after it. The walk at opening checked every bound."""
        buffer = self._buffer
        if type_id in _SCALARS:
            dtype = _SCALARS[type_id][1]
            return np.frombuffer(buffer, dtype, 1, at)[0].item(), at + dtype.itemsize
        if type_id == STRING:
            end = at + 8 + _U64.unpack_from(buffer, at)[0]
            return buffer[at + 8 : end].decode("utf-8", "surrogateescape"), end
        element, count = _U32_U64.unpack_from(buffer, at)
        at += 12
        if element in _SCALARS:
            dtype = _SCALARS[element][1]
            array = np.frombuffer(buffer, dtype, count, at).copy()  # values may lie unaligned in the file
            array.flags.writeable = False
            return array, at + array.nbytes
        items = []
        if element == STRING:
            unpack = _U64.unpack_from
            for _ in range(count):
                start = at + 8
                at = start + unpack(buffer, at)[0]
                items.append(buffer[start:at].decode("utf-8", "surrogateescape"))
        else:
            for _ in range(count):
                item, at = self._decode(element, at)
                items.append(item)
        return items, at

    def type_of(self, key: str) -> str:
        """The value type as the specification names it: "uint32", "string", "array of float32", ..."""
        entry = self._entries[key]
        if entry.type_id == ARRAY:
            return f"array of {_type_name(self._element(entry))}"
        return _type_name(entry.type_id)

    def offset_of(self, key: str) -> int:
        """The byte offset of the key in the file, for messages."""
        return self._entries[key].key_offset

    def raw(self, key: str) -> tuple[int, bytes]:
        """Type id and the bytes of the value as the file holds them."""
        entry = self._entries[key]
        return entry.type_id, bytes(self._buffer[entry.start : entry.end])

    def _element(self, entry: Entry) -> int:
        return _U32_U64.unpack_from(self._buffer, entry.start)[0]

    def _get(self, key: str, default: Any, accepted: frozenset[int], wanted: str) -> Any:
        entry = self._entries.get(key)
        if entry is None:
            if default is _REQUIRED:
                raise GGUFError(f"{shown_path(self._path)}: key {shown(key)} ({wanted}) is missing from the metadata")
            return default
        if entry.type_id not in accepted:
            raise self._wrong_type(key, wanted)
        return self[key]

    def _wrong_type(self, key: str, wanted: str) -> GGUFError:
        at = self.offset_of(key)
        return GGUFError(
            f"{shown_path(self._path)}: key {shown(key)} at byte {at}: is {self.type_of(key)}, but {wanted} is wanted"
        )

    def get_int(self, key: str, default: Any = _REQUIRED) -> Any:
        """An integer of any width as int; `default` where the key is missing. GGUFError: wrong type, or missing."""
        return self._get(key, default, _INTEGERS, "an integer")

    def get_float(self, key: str, default: Any = _REQUIRED) -> Any:
        """A float32, float64 or integer as float; `default` where the key is missing. GGUFError as for get_int."""
        value = self._get(key, default, _FLOATS | _INTEGERS, "a float")
        return float(value) if key in self else value

    def get_str(self, key: str, default: Any = _REQUIRED) -> Any:
        """A string; `default` where the key is missing. GGUFError as for get_int."""
        return self._get(key, default, frozenset((STRING,)), "a string")

    def get_bool(self, key: str, default: Any = _REQUIRED) -> Any:
        """A bool; `default` where the key is missing. GGUFError as for get_int."""
        return self._get(key, default, frozenset((BOOL,)), "a bool")

    def get_array(self, key: str, default: Any = _REQUIRED, of: Element | None = None) -> Any:
        """An array: NumPy (n,) read-only for numbers, list[str] for strings; `default` where the key is missing.

        `of` asks for elements of one kind: "int", "float", "str" or "bool". GGUFError: not an array, another kind of
        element, or missing without a default.
        """
        wanted = f"an array of {of}" if of else "an array"
        value = self._get(key, default, frozenset((ARRAY,)), wanted)
        if of is not None and key in self:
            accepted = {"int": _INTEGERS, "float": _FLOATS, "str": {STRING}, "bool": {BOOL}}[of]
            if self._element(self._entries[key]) not in accepted:
                raise self._wrong_type(key, wanted)
        return value
