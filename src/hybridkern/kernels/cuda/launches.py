"""Launches: which kernel, how large a grid, with which arguments. Nothing here touches a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridkern.errors import KernelError

from . import arguments as a
from .layout import LAYOUTS, TILE

MATVEC_WARPS = 8
MATVEC_CLUSTER = 2  # blocks that prepare their input together: HK_CLUSTER of csrc/cuda/hk_cluster.cuh
MATVEC_RING = 73 << 10  # bytes of weights that a block has on their way: two blocks must fit into a multiprocessor
MATVEC_RINGS = {"IQ4_NL": 64 << 10, "IQ4_XS": 64 << 10, "MXFP4": 64 << 10}  # 2 % faster with less on their way
MATVEC_SHORT = 2000  # bytes of a step of which two are taken at once: HK_SHORT_STEP of csrc/cuda/hk_group.cuh
BLOCK_MEMORY = 227 << 10  # shared memory that a block may have
# Pairs of formats that one launch takes (csrc/cuda/matvec.cu).
MIXED = (
    ("Q4_K", "Q6_K"), ("Q5_K", "Q6_K"), ("Q4_K", "Q5_K"), ("Q3_K", "Q4_K"), ("Q3_K", "Q5_K"), ("Q2_K", "Q3_K"),
    ("Q2_K", "Q4_K"),
)  # fmt: skip
FEW = 8  # columns that a matrix-vector kernel takes
DECODE_HEADS, DECODE_WARPS = 8, 4  # of a block that decodes
# Shared memory of attention, in bytes, and decoding blocks on a multiprocessor: from sm_80 on, and before
DECODE_SHARED, DECODE_BLOCKS = (98304, 65536), (2, 1)
# For each size of heads, wide tiles (128 rows) and narrow ones (64); the same for all before sm_80
PREFILL_SHARED = {64: (50176, 50176), 128: (66560, 81920), 256: (0, 98304)}
PREFILL_SHARED_SMALL = 50176
ROW_MODES = {"copy": 0, "silu": 1, "gelu_tanh": 2, "add": 3, "scale": 4, "softcap": 5, "select": 6}
GLU = {None: 0, "silu": 1, "gelu_tanh": 2}
ARGMAX_CHUNKS = 64  # of a row of logits
TOPK_MOST, TOPK_WIDTH = 256, 1 << 18  # k, logits
TOPK_PARTIAL = ARGMAX_CHUNKS * (16 + 4 * 256)  # bytes of scratch per output row
Struct = dict[str, Any]


@dataclass(frozen=True)
class Launch:
    """One kernel launch; args: the bytes of its struct. together: its blocks wait for each other, so that all of them
    must be there at the same time."""

    function: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    args: np.ndarray[Any, Any]
    together: bool = False


def home_of(function: str) -> str:
    """The source file, and so the image, that a kernel is in."""
    for prefix, home in (
        ("convert", "convert"),
        ("argmax", "argmax"),
        ("topk", "topk"),
        ("link", "link"),
        ("prefill", "attend_prefill"),
        ("decode", "attend_decode"),
        ("token8", "token8"),
        ("token", "token"),
    ):
        if function.startswith(f"hk_{prefix}"):
            return home
    is_float = function.startswith("hk_matvec") and function.endswith(("_f32", "_f16", "_bf16"))
    if is_float or function == "hk_matmul_f32":
        return "floats"
    return next((home for home in ("matvec", "matmul", "wgmma") if function.startswith(f"hk_{home}")), "rows")


def ceil_div(n: int, d: int) -> int:
    return -(-n // d)


def convert(type_name: str, raw: int, to: int, rows: int, cols: int, packed: bool = False) -> Launch:
    """Rows as the file has them at `raw`, or panels of the CPU set, into device layout. Rows of a float format need
    none: there is a kernel for their panels alone."""
    args = a.pack(a.CONVERT, raw=raw, to=matrix(to), rows=rows, cols=cols)
    layout = LAYOUTS[type_name]
    records = ceil_div(rows, TILE) * ceil_div(cols, 32 if layout.is_float else layout.columns)
    name = f"hk_convert_{'packed_' if packed else ''}{type_name.lower()}"
    return Launch(name, (ceil_div(records, 8), 1, 1), (256, 1, 1), 0, args)


def matrix(at: int) -> Struct:
    """The struct of a matrix that lies there."""
    return {"at": at}


@dataclass(frozen=True)
class MatvecShape:
    """Of a matrix-vector block: warps, steps that each has on their way, bytes of shared memory.

    staged: whether the input of several columns is in there."""

    warps: int
    slots: int
    shared: int
    staged: bool


def matvec_shape(
    types: Sequence[str], cols: int, few: bool, warps: int, ring: int, limit: int, parts: int = 1
) -> MatvecShape:
    """As csrc/cuda/matvec.cu lays it out. warps, ring (bytes of weights on their way): at most; limit: of memory.
    parts: of the only column's input."""
    steps, both = [256 // LAYOUTS[t].columns * LAYOUTS[t].nbytes for t in types], not few and parts == 1
    slot = max(n * (2 if both and n <= MATVEC_SHORT else 1) for n in steps) + 8
    fixed = 8 * 2 * (4 if few else 1) * 32 * 4 + 8 * 4 + 16 + 32 * 4 + (0 if few else 16)
    padded = ceil_div(cols, 256) * 256
    column = 2 * FEW * padded if few else parts * (padded + sum(padded // 32 * LAYOUTS[t].meta for t in types))
    staged = few and fixed + column + 2 * warps * slot <= limit
    if staged or not few:
        fixed += column
    while warps > 1 and fixed + warps * slot > limit:
        warps //= 2
    slots = max(1, min(ring, limit - fixed) // (warps * slot))
    return MatvecShape(warps, slots, fixed + warps * slots * slot, staged)


def matvec(
    type_name: str, step: Struct, parts: list[Struct], cols: int, *, other: tuple[str, int] | None = None, x: int = 0,
    norm: int = 0, normalise: bool = False, eps: float = 0.0, half: tuple[int, int] | None = None,
    half_stride: int = FEW, precise: bool = False, glu: str | None = None, outputs: bool = False,
    processors: int = 132, warps: int = MATVEC_WARPS, ring: int | None = None, limit: int = BLOCK_MEMORY,
) -> Launch:  # fmt: skip
    """Products with one column (x: float32, normalised on the way; precise: with 15 bits) or up to 8 (half: their f16
    form and scales, half_stride: the tokens of a chunk of it).

    other: a second format and how many of the last parts have it; for one column that is not precise."""
    few = half is not None
    types = [type_name] if other is None else [type_name, other[0]]
    ring = ring or (MATVEC_RING if few or precise else MATVEC_RINGS.get(type_name, MATVEC_RING))
    shape = matvec_shape(types, cols, few, warps, ring, limit, 1 + precise)
    x16, scale = half or (0, 0)
    n_first = len(parts) - (other[1] if other else 0)
    tiles = [ceil_div(p["rows"], TILE) for p in (parts[:1] if glu else parts)]
    first, second = sum(tiles[:n_first]), sum(tiles[n_first:])
    grid = ceil_div(min(processors, first + second), MATVEC_CLUSTER) * MATVEC_CLUSTER
    args = a.pack(
        a.MATVEC,
        step=step,
        part=parts,
        x=x,
        norm=norm,
        half=x16,
        half_scale=scale,
        half_stride=half_stride,
        cols=cols,
        n_parts=1 if glu else len(parts),
        n_first=n_first,
        tiles=first // grid,
        more_tiles=first % grid,
        other_tiles=second // grid,
        other_more_tiles=second % grid,
        glu=GLU[glu],
        rows_are_outputs=outputs,
        normalise=normalise,
        staged=shape.staged,
        slots=shape.slots,
        eps=eps,
    )
    name = f"hk_matvec{'8' if few else '2' if precise else ''}_{'_'.join(types).lower()}"
    return Launch(name, (grid, 1, 1), (32 * shape.warps, 1, 1), shape.shared, args)


def float_product(
    type_name: str,
    step: Struct,
    part: Struct,
    cols: int,
    n: int,
    *,
    x32: int,
    x_stride: int = 0,
    outputs: bool = False,
    processors: int = 132,
) -> Launch:
    """A product of float weights, F32 or with few columns, with at most n columns of float32."""
    args = matmul_args(step, [part], cols, x_stride or cols, outputs, x32=x32)
    if n > FEW:
        return Launch("hk_matmul_f32", (ceil_div(part["rows"], 64), ceil_div(n, 64), 1), (256, 1, 1), 0, args)
    name = f"hk_matvec{'' if n == 1 else '8'}_{type_name.lower()}"
    return Launch(name, (min(ceil_div(part["rows"], 32), processors), 1, 1), (256, 1, 1), 0, args)


def matmul_args(
    step: Struct, parts: list[Struct], cols: int, x_stride: int, outputs: bool, **input: int
) -> np.ndarray[Any, Any]:
    """The struct of a product with many columns or of float weights."""
    return a.pack(
        a.MATMUL, step=step, part=parts, n_parts=len(parts), cols=cols, x_stride=x_stride, rows_are_outputs=outputs,
        **input,
    )  # fmt: skip


def rows(step: Struct, n: int, width: int, mode: str = "copy", **fields: Any) -> Launch:
    """A row operation with norm and quantised forms; fields as in hk_rows_args."""
    args = a.pack(a.ROWS, step=step, width=width, mode=ROW_MODES[mode], **fields)
    threads = min(512, max(64, ceil_div(width // 4, 32) * 32))
    return Launch("hk_rows", (n, 1, 1), (threads, 1, 1), 0, args)


def elements(step: Struct, n: int, width: int, mode: str, **fields: Any) -> Launch:
    """A row operation without norm and quantised forms, of any width."""
    args = a.pack(a.ROWS, step=step, width=width, mode=ROW_MODES[mode], **fields)
    return Launch("hk_elements", (min(ceil_div(width, 256), 256), n, 1), (256, 1, 1), 0, args)


def observe(step: Struct, width: int, **fields: Any) -> Launch:
    """Sums of squares by column; fields as in hk_observe_args."""
    args = a.pack(a.OBSERVE, step=step, width=width, **fields)
    return Launch("hk_observe", (ceil_div(width, 32), 1, 1), (256, 1, 1), 0, args)


def embed(
    type_name: str,
    step: Struct,
    n: int,
    table: int,
    rows: int,
    cols: int,
    out: int,
    stride: int,
    scale: float,
) -> Launch:
    """Rows of the table by token."""
    to = {"out": out, "rows": rows, "cols": cols, "out_stride": stride, "scale": scale}
    args = a.pack(a.EMBED, step=step, table=matrix(table), **to)
    return Launch(f"hk_embed_{type_name.lower()}", (n, 1, 1), (128, 1, 1), 0, args)


def angles(step: Struct, n: int, half: int, **fields: Any) -> Launch:
    """Rotary angles of every token."""
    args = a.pack(a.ANGLES, step=step, half=half, **fields)
    return Launch("hk_angles", (n, 1, 1), (max(32, min(128, half)), 1, 1), 0, args)


def heads(step: Struct, n: int, cache: Struct, streams: list[Struct]) -> Launch:
    """Norm, rotation and store of heads."""
    args = a.pack(a.HEADS, step=step, cache=cache, stream=streams, n_streams=len(streams))
    return Launch("hk_heads", (ceil_div(sum(s["n_heads"] for s in streams), 4), n, 1), (128, 1, 1), 0, args)


def head_size(dim: int) -> int:
    """The compiled head size that serves `dim`; 0 for none."""
    return next((size for size in (64, 128, 256) if dim <= size), 0)


def decode_splits(
    n: int, n_head: int, n_kv: int, processors: int, max_tokens: int, capability: tuple[int, int] = (9, 0)
) -> int:
    """Between how many blocks the cache of a token is divided."""
    tiles = n_kv * ceil_div(n_head // n_kv, DECODE_HEADS) * n
    blocks = DECODE_BLOCKS[capability < (8, 0)] * processors // tiles
    return max(1, min(blocks, ceil_div(max_tokens, 16 * DECODE_WARPS)))


def attend(
    step: Struct, n: int, cache: Struct, kv_type: str, *, splits: int = 1, capability: tuple[int, int] = (9, 0),
    processors: int = 132, **fields: Any,
) -> Launch:  # fmt: skip
    """Attention of n tokens; at most 8 are decoded, with caches split as decode_splits says. fields: q, out, strides,
    n_head, scale, ..."""
    size = head_size(max(cache["dim_k"], cache["dim_v"]))
    args = a.pack(a.ATTEND, step=step, cache=cache, splits=splits, **fields)
    group, small = fields["n_head"] // cache["n_kv"], capability < (8, 0)
    if n <= FEW:
        grid = (splits, cache["n_kv"] * ceil_div(group, DECODE_HEADS), n)
        return Launch(f"hk_decode{size}_{kv_type}", grid, (32 * DECODE_WARPS, 1, 1), DECODE_SHARED[small], args)
    narrow = size == 256 or cache["n_kv"] * ceil_div(n * group, 128) < 2 * processors
    grid = (cache["n_kv"], ceil_div(n * group, 64 if narrow else 128), 1)
    name = f"hk_prefill{'_narrow' if narrow and size < 256 else ''}{size}_{kv_type}"
    return Launch(name, grid, (128, 1, 1), PREFILL_SHARED_SMALL if small else PREFILL_SHARED[size][narrow], args)


def topk(step: Struct, n: int, k: int, *, partial: int, width: int, **fields: Any) -> Launch:
    """The k likeliest tokens of every output row, sorted; partial: n times TOPK_PARTIAL bytes."""
    if not 1 <= k <= TOPK_MOST or width > TOPK_WIDTH:
        raise KernelError(f"the CUDA set finds at most {TOPK_MOST} of {TOPK_WIDTH} logits, not {k} of {width}")
    peaks = partial + n * ARGMAX_CHUNKS * 16
    args = a.pack(a.TOPK, step=step, partial=partial, peaks=peaks, width=width, k=k, **fields)
    return Launch("hk_topk", (ARGMAX_CHUNKS, n, 1), (256, 1, 1), 0, args)


def argmax(step: Struct, n: int, **fields: Any) -> Launch:
    """The likeliest token of every output row. fields: as in hk_argmax_args; to: {host, next_tokens, ...}."""
    return Launch("hk_argmax", (ARGMAX_CHUNKS, n, 1), (256, 1, 1), 0, a.pack(a.ARGMAX, step=step, **fields))


def link(step: Struct, receive: bool, rows: list[Struct], flag: int, abort: int) -> Launch:
    """What crosses through mapped host memory. rows: as in hk_link_rows."""
    quads = all(r["width"] % 4 == 0 and r["at"] % 16 == 0 and r["stride"] % 4 == 0 for r in rows)
    args = a.pack(a.LINK, step=step, rows=rows, n_rows=len(rows), flag=flag, abort=abort, quads=quads)
    return Launch(f"hk_link_{'receive' if receive else 'send'}", (1, 1, 1), (1024, 1, 1), 0, args)
