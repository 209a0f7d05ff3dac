"""Look for NaN and infinity in the scales of quantised tensors and in the values of float tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridkern.errors import GGUFError

from .cursor import shown, shown_path
from .format_table import SUPPORTED, QuantType
from .reader import GGUFFile
from .tensors import TensorInfo

_CHUNK = 8 << 20  # bytes of tensor data looked at in one go


@dataclass(frozen=True)
class _Field:
    """A number of each block: its name, its place in the block, its dtype and the bits that are all set if not finite.

    IEEE and bfloat16 numbers are infinite or NaN where every exponent bit is set; e8m0 is NaN at 255.
    """

    name: str
    offset: int
    dtype: str
    exponent: int


def _halves(*fields: tuple[str, int]) -> tuple[_Field, ...]:
    return tuple(_Field(name, offset, "<u2", 0x7C00) for name, offset in fields)


# Supported type -> where its floating-point numbers lie; block layouts of the public GGUF specification.
FIELDS: dict[str, tuple[_Field, ...]] = {
    "F32": (_Field("value", 0, "<u4", 0x7F800000),),
    "F16": _halves(("value", 0)),
    "BF16": (_Field("value", 0, "<u2", 0x7F80),),
    "Q4_0": _halves(("d", 0)),
    "Q4_1": _halves(("d", 0), ("m", 2)),
    "Q5_0": _halves(("d", 0)),
    "Q5_1": _halves(("d", 0), ("m", 2)),
    "Q8_0": _halves(("d", 0)),
    "Q2_K": _halves(("d", 80), ("dmin", 82)),
    "Q3_K": _halves(("d", 108)),
    "Q4_K": _halves(("d", 0), ("dmin", 2)),
    "Q5_K": _halves(("d", 0), ("dmin", 2)),
    "Q6_K": _halves(("d", 208)),
    "IQ4_NL": _halves(("d", 0)),
    "IQ4_XS": _halves(("d", 0)),
    "MXFP4": (_Field("e", 0, "u1", 0xFF),),
}


@dataclass(frozen=True)
class Finding:
    """A field of a tensor that holds NaN or infinity: the first place, and how many blocks are affected.

    block counts the tensor's blocks from 0 (for F32, F16 and BF16 a block is one value); offset is the byte in the
    file `path`.
    """

    path: str
    tensor: str
    type: QuantType
    field: str
    block: int
    offset: int
    count: int

    def __str__(self) -> str:
        more = f" ({self.count} such blocks in all)" if self.count > 1 else ""
        return (
            f"{shown_path(self.path)}: tensor {shown(self.tensor)} ({self.type.name}), block {self.block}, byte "
            f"{self.offset}: {self.field} is NaN or infinite{more}"
        )


def findings_of(file: GGUFFile, info: TensorInfo) -> list[Finding]:
    """Check one tensor; a Finding per field that is not finite everywhere, none for a type that is not supported."""
    if info.type not in SUPPORTED:
        return []
    size = info.type.block_bytes
    blocks = file.data(info.name).reshape(-1, size)
    fields = FIELDS[info.type.name]
    first, count = dict.fromkeys(fields, -1), dict.fromkeys(fields, 0)
    step = max(1, _CHUNK // size)
    for start in range(0, len(blocks), step):
        chunk = blocks[start : start + step]
        for f in fields:
            width = np.dtype(f.dtype).itemsize
            numbers = np.ascontiguousarray(chunk[:, f.offset : f.offset + width]).view(f.dtype)[:, 0]
            bad = (numbers & f.exponent) == f.exponent
            found = int(np.count_nonzero(bad))
            if found and first[f] < 0:
                first[f] = start + int(np.argmax(bad))
            count[f] += found
    path = file.paths[info.part]
    return [
        Finding(path, info.name, info.type, f.name, first[f], info.offset + first[f] * size + f.offset, count[f])
        for f in fields
        if count[f]
    ]


def validate_quants(file: GGUFFile) -> list[Finding]:
    """Check every tensor of a supported type; one Finding per tensor and field that is not finite everywhere.

    Raises GGUFError where the file is cut short meanwhile.
    """
    findings = []
    for info in file.tensors.values():
        findings += findings_of(file, info)
    file.check_intact()
    return findings


def require_finite(file: GGUFFile, shown_findings: int = 8) -> None:
    """Raise a GGUFError that lists the first findings of `validate_quants`, if there are any."""
    findings = validate_quants(file)
    if findings:
        lines = [str(f) for f in findings[:shown_findings]]
        if len(findings) > shown_findings:
            lines.append(f"and {len(findings) - shown_findings} more tensors or fields")
        raise GGUFError("\n".join(lines))
