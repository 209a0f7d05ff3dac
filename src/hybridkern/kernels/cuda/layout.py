"""The device layout of weights: the size of a matrix, and where its rows begin (csrc/cuda/hk_unit.cuh)."""

from __future__ import annotations

from dataclasses import dataclass

TILE = 16  # rows


@dataclass(frozen=True)
class FormatLayout:
    """Quantised: 16 rows and `columns` columns are a record of `nbytes` bytes. Float: as in the file, `nbytes` a value.

    meta: bytes per unit of 32 that a matrix-vector kernel keeps of each part of its input (hk_step.cuh)."""

    columns: int
    nbytes: int
    is_float: bool = False
    meta: int = 8

    @property
    def block(self) -> int:
        """Weights that a row must be a multiple of."""
        return 256 if self.columns == 256 else 32


def _records(columns: int, row_bytes: int, meta: int = 8) -> FormatLayout:
    return FormatLayout(columns, TILE * row_bytes, meta=meta)


LAYOUTS: dict[str, FormatLayout] = {
    "F32": FormatLayout(1, 4, is_float=True),
    "F16": FormatLayout(1, 2, is_float=True),
    "BF16": FormatLayout(1, 2, is_float=True),
    "Q4_0": _records(64, 36),
    "Q4_1": _records(64, 40),
    "Q5_0": _records(64, 44),
    "Q5_1": _records(64, 48),
    "Q8_0": _records(64, 68),
    "Q2_K": _records(256, 84, 16),
    "Q3_K": _records(256, 110, 16),
    "Q4_K": _records(256, 144),
    "Q5_K": _records(256, 176),
    "Q6_K": _records(256, 210, 16),
    "IQ4_NL": _records(64, 36),
    "IQ4_XS": _records(256, 136),
    "MXFP4": _records(64, 34),
}


def device_bytes(type_name: str, rows: int, cols: int) -> int:
    """Bytes of a matrix in device layout, to the byte: rows padded to 16, columns to a record."""
    layout = LAYOUTS[type_name]
    if layout.is_float:
        return rows * cols * layout.nbytes
    return -(-rows // TILE) * -(-cols // layout.columns) * layout.nbytes


def row_offset(type_name: str, first: int, cols: int) -> int:
    """Where the rows from `first` on begin: a multiple of 16 unless the format is a float one."""
    assert LAYOUTS[type_name].is_float or first % TILE == 0
    return device_bytes(type_name, first, cols)
