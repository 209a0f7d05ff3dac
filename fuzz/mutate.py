"""A mutator that knows the structure of GGUF files: mostly valid files with a few things wrong in them.

`mutated(raw, rng, others)` changes a file as lists (keys, values, tensors), lays its tensors out again where chance
wants it, writes it, and then lies in some of its fields: counts, lengths, types, offsets. All follows from `rng`.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Sequence
from random import Random

from .fragments import JINJA, KEYS, STRINGS, TEMPLATE_KEYS, TENSORS, TEXT_KEYS
from .wire import ARRAY, BLOCKS, CODE, STRING, WIDTH, Array, File, Key, Tensor, joined, lay_out, parse, parts_of, write

MAX_BYTES = 1 << 13
INTEGERS = (
    0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 31, 32, 33, 64, 127, 128, 255, 256, 257, 4095, 65535, 65536, 1 << 20,
    (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 42) + 1, 1 << 56, 1 << 60, (1 << 63) - 1, 1 << 63,
    (1 << 64) - 32, (1 << 64) - 8, (1 << 64) - 1,
)  # fmt: skip
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    1e-45,
    1e-6,
    1e-5,
    0.5,
    1e4,
    1e6,
    1e30,
    3.4e38,
    float("inf"),
    -float("inf"),
    float("nan"),
)


def some_number(type_: int, rng: Random) -> bytes:
    """A number of a value type, mostly one at an edge; a bool may hold any byte."""
    if rng.random() < 0.2 or CODE[type_] == "?":
        return (
            rng.randbytes(WIDTH[type_]) if rng.random() < 0.2 else bytes([rng.randrange(2)]) + bytes(WIDTH[type_] - 1)
        )
    if CODE[type_] in "fd":
        value = rng.choice(FLOATS)
        return struct.pack("<" + CODE[type_], value if CODE[type_] == "d" or abs(value) < 3.5e38 else float("inf"))
    return (rng.choice(INTEGERS) & ((1 << 64) - 1)).to_bytes(8, "little")[: WIDTH[type_]]


def some_string(rng: Random) -> bytes:
    """A string: from the dictionary, random bytes, or long."""
    kind = rng.random()
    if kind < 0.7:
        return rng.choice(STRINGS)
    if kind < 0.9:
        return rng.randbytes(rng.randrange(12))
    return rng.choice(STRINGS) * rng.choice((2, 30, 300))


def changed_text(text: bytes, rng: Random, words: Sequence[bytes]) -> bytes:
    """A text with a few edits: words put in, ranges removed, doubled or moved, bytes replaced."""
    out = bytearray(text)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(out) + 1)
        end = min(len(out), at + rng.choice((1, 2, 5, 20, 100)))
        kind = rng.randrange(5)
        if kind <= 1:
            out[at:at] = rng.choice(words)
        elif kind == 2:
            del out[at:end]
        elif kind == 3:
            out[at:at] = out[at:end] * rng.choice((1, 1, 2, 16))
        elif out:
            out[rng.randrange(len(out))] = rng.randrange(256)
    return bytes(out[:8192])


def some_value(type_: int, rng: Random, depth: int = 0) -> bytes | Array:
    """A value of a type; arrays may be nested."""
    if type_ == STRING:
        return some_string(rng)
    if type_ != ARRAY:
        return some_number(type_, rng) if type_ in WIDTH else b""
    element = rng.choice((*WIDTH, STRING, STRING, ARRAY))
    if element == ARRAY and depth > 5:
        element = STRING
    n = rng.choice((0, 1, 2, 3, 3, 8)) if depth == 0 else rng.choice((0, 1, 2))
    return Array(element, [some_value(element, rng, depth + 1) for _ in range(n)])


def _change_value(k: Key, rng: Random) -> None:
    if isinstance(k.value, Array):
        items, element = k.value.items, k.value.element
        kind = rng.randrange(7)
        at = rng.randrange(len(items) + 1)
        if kind == 0 or not items:
            items.insert(at, some_value(element, rng, 1))
        elif kind == 1:
            del items[at : at + rng.choice((1, 1, 4, 100))]
        elif kind == 2:
            items[at:at] = items[at : at + rng.choice((1, 4))] * rng.choice((1, 8))
        elif kind == 3:
            k.value = some_value(ARRAY, rng)
        elif kind == 4 and element == STRING:
            at = rng.randrange(len(items))
            items[at] = changed_text(items[at], rng, STRINGS)
        else:
            items[rng.randrange(len(items))] = some_value(element, rng, 1)
    elif k.type == STRING:
        words = JINJA if k.name in TEMPLATE_KEYS else STRINGS
        fresh = rng.random() < (0.05 if words is JINJA else 0.3)
        k.value = some_string(rng) if fresh else changed_text(k.value, rng, words)
    else:
        k.value = some_value(k.type, rng)


def _change_entry(entries: list[Key] | list[Tensor], at: int, kind: int, names: Sequence[bytes], rng: Random) -> bool:
    """What keys and tensors have in common: 0 drops one, 1 doubles it, 2 renames it; False for another kind."""
    if kind == 0:
        del entries[at]
    elif kind == 1:
        entries.append(copy.deepcopy(entries[at]))  # type: ignore[arg-type]
    elif kind == 2:
        name = entries[at].name
        entries[at].name = rng.choice(names) if rng.random() < 0.7 else changed_text(name, rng, STRINGS)
    return kind < 3


def _change_key(file: File, rng: Random) -> None:
    if not file.keys or rng.random() < 0.15:
        type_ = rng.choice((*WIDTH, STRING, ARRAY))
        file.keys.insert(rng.randrange(len(file.keys) + 1), Key(rng.choice(KEYS), type_, some_value(type_, rng)))
        return
    at = rng.randrange(len(file.keys))
    if rng.random() < 0.3:  # long texts have more in them that can be wrong
        at = next((i for i, k in enumerate(file.keys) if k.name in TEXT_KEYS and rng.random() < 0.6), at)
    k = file.keys[at]
    kind = rng.randrange(20)
    if _change_entry(file.keys, at, kind, KEYS, rng):
        return
    if kind == 3:
        k.type = rng.choice((*WIDTH, STRING, ARRAY))
        k.value = some_value(k.type, rng)
    elif kind == 4:
        other = rng.randrange(len(file.keys))
        file.keys[at], file.keys[other] = file.keys[other], file.keys[at]
    else:
        _change_value(k, rng)


def _change_tensor(file: File, rng: Random) -> None:
    if not file.tensors or rng.random() < 0.1:
        dims = [rng.choice((1, 2, 8, 32, 256)) for _ in range(rng.choice((1, 2, 2, 3, 4)))]
        file.tensors.append(Tensor(rng.choice(TENSORS), dims, rng.choice((*BLOCKS, 42)), 0))
        return
    at = rng.randrange(len(file.tensors))
    t = file.tensors[at]
    kind = rng.randrange(8)
    if _change_entry(file.tensors, at, kind, TENSORS, rng):
        return
    if kind == 3:
        t.type = rng.choice((*BLOCKS, 4, 9, 15, 31, 36, 42, 1 << 31))
    elif kind == 4:
        t.offset = rng.choice((rng.choice(file.tensors).offset, t.offset + 32, t.offset - 32, *INTEGERS)) % (1 << 64)
    elif kind == 5 and t.dims:
        t.dims[rng.randrange(len(t.dims))] = rng.choice(INTEGERS)
    elif kind == 6:
        t.dims = t.dims[::-1]
    else:
        t.dims.insert(rng.randrange(len(t.dims) + 1), rng.choice((0, 1, 1, 2, 256)))


def _change_data(file: File, rng: Random) -> None:
    if rng.random() < 0.5:
        file.data = file.data[: rng.randrange(len(file.data) + 1)]
    elif file.data:
        data, at = bytearray(file.data), rng.randrange(len(file.data))
        data[at : at + 4] = rng.choice(
            (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\x80\x7f", b"\0\x7c\0\xfc", rng.randbytes(4))
        )
        file.data = bytes(data)


def _cross(file: File, rng: Random, others: Sequence[bytes]) -> None:
    other = parse(parts_of(rng.choice(others))[0]) if others else None
    if other is None:
        return
    here = {k.name: i for i, k in enumerate(file.keys)}
    for k in other.keys:
        if rng.random() < 0.3:
            if k.name in here:
                file.keys[here[k.name]] = k
            else:
                file.keys.append(k)
    if rng.random() < 0.2:
        file.tensors = other.tensors
        file.data = other.data


def lies(raw: bytearray, fields: Sequence[tuple[int, int]], rng: Random) -> None:
    """Overwrite some fields with numbers at the edges."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at, size = rng.choice(fields)
        now = int.from_bytes(raw[at : at + size], "little")
        new = rng.choice((now + 1, now - 1, now * 2, now ^ (1 << rng.randrange(8 * size)), *INTEGERS))
        raw[at : at + size] = (new % (1 << (8 * size))).to_bytes(size, "little")


def _raw_damage(raw: bytearray, rng: Random) -> None:
    at = rng.randrange(len(raw) + 1)
    kind = rng.randrange(4)
    if kind == 0:
        del raw[at:]
    elif kind == 1:
        raw[at:at] = rng.randbytes(rng.randrange(1, 9))
    elif kind == 2:
        del raw[at : at + rng.randrange(1, 9)]
    elif raw:
        raw[min(at, len(raw) - 1)] = rng.randrange(256)


def _mutated_file(raw: bytes, rng: Random, others: Sequence[bytes], change: Callable[[File, Random], None]) -> bytes:
    file = parse(raw)
    if file is None:
        if rng.random() < 0.1 and others:
            return rng.choice(others)
        out = bytearray(raw)
        _raw_damage(out, rng)
        return bytes(out)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        change(file, rng)
    if rng.random() < 0.05:
        _cross(file, rng, others)
    if rng.random() < 0.02:
        file.version = rng.choice((0, 1, 2, 3, 4, 2 << 24, 3 << 24))
    if rng.random() < 0.7:
        lay_out(file)
    out = write(file, rng.choice((32, 32, 32, 32, 64, 8, 1)))
    if rng.random() < 0.15:
        lies(out, file.fields, rng)
    if rng.random() < 0.05:
        _raw_damage(out, rng)
    return bytes(out)


def _any(file: File, rng: Random) -> None:
    kind = rng.random()
    (_change_key if kind < 0.6 else _change_tensor if kind < 0.93 else _change_data)(file, rng)


def mutated(raw: bytes, rng: Random, others: Sequence[bytes] = (), keys_only: bool = False) -> bytes:
    """A changed input. others: inputs to take pieces from. keys_only: leave tensors and data alone."""
    parts = parts_of(raw)
    change = _change_key if keys_only else _any
    if len(parts) == 1 and not raw.startswith(b"PARTS"):
        out = _mutated_file(raw, rng, others, change)
    else:
        at, kind = rng.randrange(len(parts)), rng.random()
        if kind < 0.8:
            parts[at] = _mutated_file(parts[at], rng, others, change)
        elif kind < 0.9:
            del parts[at]
        else:
            parts.append(parts[at])
        out = joined(parts)
    return out[:MAX_BYTES]
