"""The device layout of weights: which planes a format has, and where they lie (csrc/cuda/hk_unit.cuh)."""

from __future__ import annotations

from dataclasses import dataclass

UNIT = 32  # weights
_ALIGN = 256


@dataclass(frozen=True)
class FormatLayout:
    """Bytes of the planes q, h, s, d. per_unit: of 32 weights; per_block: of 256, for planes with one entry a block."""

    per_unit: tuple[int, int, int, int]
    per_block: tuple[int, int, int, int] = (0, 0, 0, 0)
    is_float: bool = False

    @property
    def block(self) -> int:
        """Weights that a row must be a multiple of."""
        return 256 if any(self.per_block) else UNIT


LAYOUTS: dict[str, FormatLayout] = {
    "F32": FormatLayout((128, 0, 0, 0), is_float=True),
    "F16": FormatLayout((64, 0, 0, 0), is_float=True),
    "BF16": FormatLayout((64, 0, 0, 0), is_float=True),
    "Q4_0": FormatLayout((16, 0, 0, 2)),
    "Q4_1": FormatLayout((16, 0, 0, 4)),
    "Q5_0": FormatLayout((16, 4, 0, 2)),
    "Q5_1": FormatLayout((16, 4, 0, 4)),
    "Q8_0": FormatLayout((16, 16, 0, 2)),
    "Q2_K": FormatLayout((8, 0, 2, 0), (0, 0, 0, 4)),
    "Q3_K": FormatLayout((8, 4, 0, 0), (0, 0, 12, 2)),
    "Q4_K": FormatLayout((16, 0, 0, 0), (0, 0, 16, 0)),
    "Q5_K": FormatLayout((16, 4, 0, 0), (0, 0, 16, 0)),
    "Q6_K": FormatLayout((16, 8, 2, 0), (0, 0, 0, 2)),
    "IQ4_NL": FormatLayout((16, 0, 0, 2)),
    "IQ4_XS": FormatLayout((16, 0, 0, 0), (0, 0, 8, 0)),
    "MXFP4": FormatLayout((16, 0, 0, 1)),
}


def plane_sizes(type_name: str, rows: int, cols: int) -> tuple[int, ...]:
    """Bytes of the planes of a matrix, each padded to 256."""
    layout = LAYOUTS[type_name]
    units, blocks = rows * (cols // UNIT), rows * (cols // 256)
    sizes = (a * units + b * blocks for a, b in zip(layout.per_unit, layout.per_block, strict=True))
    return tuple(-(-n // _ALIGN) * _ALIGN for n in sizes)


def plane_addresses(base: int, type_name: str, rows: int, cols: int) -> tuple[int, ...]:
    """Where the planes of a matrix at `base` begin."""
    at, out = base, []
    for size in plane_sizes(type_name, rows, cols):
        out.append(at)
        at += size
    return tuple(out)


def device_bytes(type_name: str, rows: int, cols: int) -> int:
    """Bytes of a matrix in device layout, to the byte."""
    return sum(plane_sizes(type_name, rows, cols))
