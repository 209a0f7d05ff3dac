"""The tensor types of the GGUF format, as Python sees them: names, ids and block sizes.

Ids and block layouts are those of the public GGUF specification (`ggml_type`). A type stores `block_size` weights
in `block_bytes` bytes; a row is a whole number of blocks. `SUPPORTED` holds the types that kernels exist for: the
others are known, so that a file holding them can be read and described.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class QuantType:
    """One tensor type: `block_size` weights are stored in `block_bytes` bytes."""

    id: int
    name: str
    block_size: int
    block_bytes: int

    def row_bytes(self, n: int) -> int:
        """Bytes of a row of `n` weights, `n` being a multiple of `block_size`."""
        return n // self.block_size * self.block_bytes


# id, name, weights per block, bytes per block
_ROWS = (
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    # For activations, no file stores it: two fp16 and 32 bytes. gguf-py says 40, from when d and s were fp32.
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
)

TYPES: dict[int, QuantType] = {row[0]: QuantType(*row) for row in _ROWS}
BY_NAME: dict[str, QuantType] = {t.name: t for t in TYPES.values()}

# Ids that once existed and were withdrawn; a file that holds them must be converted again.
REMOVED: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

SUPPORTED: frozenset[QuantType] = frozenset(
    BY_NAME[name]
    for name in (
        "F32",
        "F16",
        "BF16",
        "Q4_0",
        "Q4_1",
        "Q5_0",
        "Q5_1",
        "Q8_0",
        "Q2_K",
        "Q3_K",
        "Q4_K",
        "Q5_K",
        "Q6_K",
        "IQ4_NL",
        "IQ4_XS",
        "MXFP4",
    )
)
