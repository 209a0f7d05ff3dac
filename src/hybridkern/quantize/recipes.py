"""The file types, as llama.cpp's users know them: which kind of tensor in which block gets more bits than the others.

Tables, not code: a mix names the kinds of tensors that differ from its base type, each with (where, type) pairs of
which the first that holds counts. `tests/quantize/golden/mixes.json` has what an independent quantiser does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hybridkern.errors import ArgumentError


@dataclass(frozen=True)
class Place:
    """Where a tensor is: block `i` of `n` that have one of its kind; group: query heads per KV head; importance:
    whether there is a matrix."""

    i: int
    n: int
    group: int
    importance: bool


Where = Callable[[Place], bool]


def always(p: Place) -> bool:
    """Everywhere."""
    return True


def outer_and_every_third(p: Place) -> bool:
    """The first and the last eighth of the blocks, and every third between."""
    eighth = p.n // 8
    return p.i < eighth or p.i >= 7 * p.n // 8 or (p.i - eighth) % 3 == 2


def first_eighth(p: Place) -> bool:
    """The first eighth of the blocks."""
    return p.i < p.n // 8


def first_eighth_unmeasured(p: Place) -> bool:
    """The first eighth of the blocks, without an importance matrix."""
    return first_eighth(p) and not p.importance


def first_eighth_measured(p: Place) -> bool:
    """The first eighth of the blocks, with an importance matrix."""
    return first_eighth(p) and p.importance


def first_sixteenth(p: Place) -> bool:
    """The first sixteenth of the blocks."""
    return p.i < p.n // 16


def first_two(p: Place) -> bool:
    """Two blocks."""
    return p.i < 2


def first_four(p: Place) -> bool:
    """Four blocks."""
    return p.i < 4


def large_groups(p: Place) -> bool:
    """Few KV heads: four or more query heads share one, and its weights are a small part of the model."""
    return p.group >= 4


Mix = Mapping[str, tuple[tuple[Where, str], ...]]


@dataclass(frozen=True)
class FileType:
    """A name on the command line, `id` the value of general.file_type, the type of most tensors, and the others."""

    name: str
    id: int
    base: str
    mix: Mix


def _type(id: int, name: str, base: str = "", **mix: tuple[tuple[Where, str], ...] | str) -> FileType:
    rules = {kind: ((always, rule),) if isinstance(rule, str) else rule for kind, rule in mix.items()}
    return FileType(name, id, base or name, rules)


_MORE = ((outer_and_every_third, "Q6_K"),)
FILE_TYPES: dict[str, FileType] = {
    t.name: t
    for t in (
        _type(1, "F16"),
        _type(32, "BF16"),
        _type(7, "Q8_0"),
        _type(18, "Q6_K"),
        _type(17, "Q5_K_M", "Q5_K", attn_v=_MORE, ffn_down=_MORE),
        _type(16, "Q5_K_S", "Q5_K"),
        _type(9, "Q5_1"),
        _type(8, "Q5_0", ffn_down=((first_eighth_measured, "Q5_1"),)),
        _type(15, "Q4_K_M", "Q4_K", attn_v=_MORE, ffn_down=_MORE),
        _type(14, "Q4_K_S", "Q4_K", attn_v=((first_four, "Q5_K"),), ffn_down=((first_eighth, "Q5_K"),)),
        _type(3, "Q4_1"),
        _type(2, "Q4_0", ffn_down=((first_eighth_measured, "Q4_1"),)),
        _type(25, "IQ4_NL", attn_v=((large_groups, "Q5_K"),), ffn_down=((first_eighth_unmeasured, "Q5_K"),)),
        _type(30, "IQ4_XS", attn_v=((large_groups, "Q5_K"),), ffn_down=((first_eighth_unmeasured, "Q5_K"),)),
        _type(13, "Q3_K_L", "Q3_K", attn_v="Q5_K", ffn_down="Q5_K", attn_output="Q5_K"),
        _type(
            12,
            "Q3_K_M",
            "Q3_K",
            attn_v=((first_two, "Q5_K"), (always, "Q4_K")),
            ffn_down=((first_sixteenth, "Q5_K"), (always, "Q4_K")),
            attn_output="Q4_K",
        ),
        _type(11, "Q3_K_S", "Q3_K"),
        _type(10, "Q2_K", attn_v=((large_groups, "Q4_K"), (always, "Q3_K")), ffn_down="Q3_K", attn_output="Q3_K"),
    )
}
_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
# What takes the place of a type whose blocks of 256 do not divide a row.
FALLBACKS = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}
FLOATS = ("F32", "F16", "BF16")


def file_type_named(name: str) -> FileType:
    """The file type of a name in any case. Raises ArgumentError, listing the names."""
    upper = name.upper()
    found = FILE_TYPES.get(_ALIASES.get(upper, upper))
    if found is None:
        raise ArgumentError(f"{name!r} is not a file type; there are {', '.join(FILE_TYPES)}")
    return found
