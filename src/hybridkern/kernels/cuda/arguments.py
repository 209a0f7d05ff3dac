"""The arguments of kernels as NumPy structs, field by field those of csrc/cuda/hk_args.h."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

P, I64, I32, F32 = np.uint64, np.int64, np.int32, np.float32
MAX_PARTS, MAX_STREAMS, MAX_CROSSING = 4, 3, 4


def _struct(*fields: tuple[Any, ...]) -> np.dtype[Any]:
    made: list[tuple[Any, ...]] = []
    for kind, names, *shape in fields:
        made += [(name, kind, *shape) for name in names.split()]
    return np.dtype(made, align=True)


STEP = _struct((P, "counts tokens positions sequences variants outputs pages"), (I64, "page_stride"))
MATRIX = _struct((P, "at"))
CONVERT = _struct((P, "raw"), (MATRIX, "to"), (I64, "rows cols"))
PART = _struct((MATRIX, "w"), (P, "out bias add"), (I64, "rows out_stride add_stride"))
MATVEC = _struct(
    (I64, "cols"),
    (I32, "n_parts n_first tiles more_tiles other_tiles other_more_tiles slots glu rows_are_outputs normalise"),
    (F32, "eps"),
    (I32, "pad"),
    (PART, "part", (MAX_PARTS,)),
    (P, "x norm half half_scale"),
    (I64, "half_stride staged"),
    (STEP, "step"),
)
MATMUL = _struct(
    (STEP, "step"),
    (PART, "part", (MAX_PARTS,)),
    (P, "x x_scale x32"),
    (I64, "cols x_stride"),
    (I32, "n_parts rows_are_outputs"),
)
ROWS = _struct(
    (STEP, "step"),
    (P, "x y norm add out half half_scale"),
    (I64, "half_stride width x_stride y_stride add_stride out_stride"),
    (I32, "mode rows_are_outputs normalise"),
    (F32, "eps number"),
    (I32, "pad"),
)
OBSERVE = _struct((STEP, "step"), (P, "x sums"), (I64, "width x_stride"), (I32, "rows_are_outputs pad"))
EMBED = _struct(
    (STEP, "step"), (MATRIX, "table"), (P, "out"), (I64, "rows cols out_stride"), (F32, "scale"), (I32, "pad")
)
ANGLES = _struct((STEP, "step"), (P, "inv_freq inv_freq_long out"), (I64, "half"), (F32, "mscale mscale_long"))
CACHE = _struct((P, "pages"), (I64, "page_bytes block_offset"), (I32, "n_kv dim_k dim_v type"))
STREAM = _struct((P, "x norm angles"), (I64, "stride"), (I32, "n_heads dim half neox store"), (F32, "eps"))
HEADS = _struct((STEP, "step"), (CACHE, "cache"), (STREAM, "stream", (MAX_STREAMS,)), (I32, "n_streams pad"))
ATTEND = _struct(
    (STEP, "step"),
    (CACHE, "cache"),
    (P, "q out partial arrived"),
    (I64, "q_stride out_stride"),
    (I32, "n_head window splits pad"),
    (F32, "scale softcap"),
)
HANDOVER = _struct((P, "host next_tokens next_positions"), (I64, "host_stride"))
ARGMAX = _struct((STEP, "step"), (P, "logits partial arrived best value"), (I64, "width stride"), (HANDOVER, "to"))
TOPK = _struct(
    (STEP, "step"),
    (P, "logits peaks partial arrived ids values total"),
    (I64, "width stride"),
    (HANDOVER, "to"),
    (I32, "k pad"),
)
LINK_ROWS = _struct((P, "at"), (I64, "stride"), (P, "host"), (I32, "width outputs"))
LINK = _struct((STEP, "step"), (LINK_ROWS, "rows", (MAX_CROSSING,)), (P, "flag abort"), (I32, "n_rows quads"))
FORMAT = _struct((I32, "id columns record meta"))
TOKEN = _struct((STEP, "step"), (P, "tape arrived stamps"), (I32, "n ring tiles input"))
CHOICE = _struct((I32, "best position"), (F32, "value lse"))


def fill(to: Any, values: Mapping[str, Any]) -> None:
    """Sets fields of a struct; nested structs take mappings, arrays of structs lists of them."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            fill(to[name], value)
        elif isinstance(value, list):
            for i, v in enumerate(value):
                fill(to[name][i], v)
        else:
            to[name] = value


def pack(kind: np.dtype[Any], **values: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """A struct as a zero-dimensional array; what is not named is zero."""
    made = np.zeros((), kind)
    fill(made, values)
    return made
