"""The tensor table of a GGUF file: names, shapes, types, and where the data lies.

Layout (public GGUF specification): a name, a 32-bit number of dimensions, that many 64-bit dimensions (the row
length first), a 32-bit type id and a 64-bit offset that counts from the start of the tensor data.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from hybridkern.errors import GGUFError

from .cursor import Cursor, shown
from .format_table import REMOVED, TYPES, QuantType

MAX_TENSORS = 1 << 15  # models have thousands at most: experts share a tensor
MAX_NAME_BYTES = 256  # the specification says 64; some writers go beyond
MAX_DIMS = 4
_SMALLEST_ENTRY = 8 + 1 + 4 + 8 + 4 + 8


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file.

    shape: GGUF order, the row length (ne0) first. offset: of the first data byte, from the start of its part's
    file. part: index of the part in `GGUFFile.paths`, 0 unless the file is split.
    """

    name: str
    type: QuantType
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    part: int = 0

    @property
    def numpy_shape(self) -> tuple[int, ...]:
        """The shape in NumPy's order, the row length last."""
        return self.shape[::-1]

    @property
    def n_elements(self) -> int:
        """The number of weights."""
        return math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of `shape[0]` weights."""
        return self.type.row_bytes(self.shape[0])


@dataclass(frozen=True)
class _Entry:
    name: str
    type: QuantType
    shape: tuple[int, ...]
    nbytes: int
    relative: int  # offset from the start of the tensor data
    at: int  # of this entry in the table


def _read_type(cursor: Cursor, what: str) -> QuantType:
    at = cursor.pos
    type_id = cursor.u32(f"the type of {what}")
    if type_id in TYPES:
        return TYPES[type_id]
    if type_id in REMOVED:
        problem = f"has type {type_id} ({REMOVED[type_id]}), which the format has dropped: convert the model again"
    else:
        problem = f"has the unknown type id {type_id}; the file may be newer than this program"
    raise cursor.error(what, at, problem)


def _read_entry(cursor: Cursor, label: str) -> _Entry:
    at = cursor.pos
    name = cursor.name(f"the name of {label}", MAX_NAME_BYTES)
    what = f"tensor {shown(name)}"
    dims_at = cursor.pos
    n_dims = cursor.u32(f"the number of dimensions of {what}")
    if not 1 <= n_dims <= MAX_DIMS:
        raise cursor.error(what, dims_at, f"has {n_dims} dimensions; 1 to {MAX_DIMS} are allowed")
    shape = cursor.numbers(n_dims, f"the dimensions of {what}")
    if 0 in shape:
        raise cursor.error(what, dims_at, f"has a dimension of zero in its shape {list(shape)}")
    type_ = _read_type(cursor, what)
    relative = cursor.u64(f"the data offset of {what}")
    # Python's integers do not wrap; C code further down holds these numbers in 64 signed bits.
    if math.prod(shape) >= 1 << 63:
        problem = f"has the shape {list(shape)}, whose product {math.prod(shape)} does not fit 64 bits"
        raise cursor.error(what, dims_at, problem)
    if shape[0] % type_.block_size:
        problem = f"has rows of {shape[0]} weights, not a multiple of {type_.name}'s block of {type_.block_size}"
        raise cursor.error(what, dims_at, problem)
    return _Entry(name, type_, shape, math.prod(shape[1:]) * type_.row_bytes(shape[0]), relative, at)


def _check_overlap(cursor: Cursor, entries: list[_Entry], data_offset: int) -> None:
    order = sorted(entries, key=lambda e: e.relative)
    for a, b in itertools.pairwise(order):
        if a.relative + a.nbytes > b.relative:
            start, end = data_offset + a.relative, data_offset + a.relative + a.nbytes
            problem = f"overlaps tensor {shown(a.name)}, which lies in bytes {start} to {end}"
            raise cursor.error(f"the data of tensor {shown(b.name)}", data_offset + b.relative, problem)


def read_table(cursor: Cursor, count: int) -> list[_Entry]:
    """Walk `count` entries of the tensor table; raises GGUFError for anything malformed."""
    if count > min(MAX_TENSORS, cursor.left // _SMALLEST_ENTRY):
        problem = f"claims {count} tensors; {cursor.left} bytes are left in the file, and {MAX_TENSORS} tensors allowed"
        raise cursor.error("the tensor count", 8, problem)
    seen: dict[str, int] = {}
    entries = []
    for i in range(count):
        entry = _read_entry(cursor, f"tensor {i} of {count}")
        if entry.name in seen:
            problem = f"is there twice, first at byte {seen[entry.name]}"
            raise cursor.error(f"tensor {shown(entry.name)}", entry.at, problem)
        seen[entry.name] = entry.at
        entries.append(entry)
    return entries


def place(cursor: Cursor, entries: list[_Entry], alignment: int, part: int) -> tuple[int, dict[str, TensorInfo]]:
    """Check every tensor's place in the data; returns the offset of the data and the tensors by name.

    Raises GGUFError for an offset that is not aligned, for data beyond the end of the file, and for tensors that
    overlap. The cursor stands behind the table.
    """
    data_offset = -(-cursor.pos // alignment) * alignment
    available = max(0, cursor.size - data_offset)
    tensors = {}
    for e in entries:
        what = f"tensor {shown(e.name)}"
        if e.relative % alignment:
            raise cursor.error(what, e.at, f"has the data offset {e.relative}, not a multiple of {alignment}")
        if e.relative > available or e.nbytes > available - e.relative:
            raise _beyond(cursor, e, what, data_offset, available)
        tensors[e.name] = TensorInfo(e.name, e.type, e.shape, data_offset + e.relative, e.nbytes, part)
    _check_overlap(cursor, entries, data_offset)
    return data_offset, tensors


def _beyond(cursor: Cursor, e: _Entry, what: str, data_offset: int, available: int) -> GGUFError:
    problem = (
        f"({e.type.name}, shape {list(e.shape)}) needs {e.nbytes} bytes from byte {data_offset + e.relative}, but the "
        f"file has {cursor.size} bytes, {available} of them tensor data (is it cut short?)"
    )
    return cursor.error(what, e.at, problem)
