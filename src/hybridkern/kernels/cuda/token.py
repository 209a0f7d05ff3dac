"""The step of one token as one launch: a tape of instructions instead of launches (csrc/cuda/token.cu).

`fold` takes the launches of a step and replaces those that the kernel knows; where it cannot, it says why not.
Nothing here touches a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import arguments as a
from .launches import Launch, ceil_div, head_size
from .layout import LAYOUTS, TILE

CAPABILITY = (9, 0)  # of GPUs that its kernel was made for and measured on
TAPE, PIECES = 8, 16  # as in csrc/cuda/hk_stream.cuh
STEP_CODES = 256  # bytes of 256 quantised values of the input
INSTRUCTION = 512  # bytes
PRODUCTS, ROWS, ATTEND = 0, 1, 2
# Formats that it multiplies, by their number in a file.
IDS = {
    "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
    "IQ4_NL": 20, "IQ4_XS": 23, "MXFP4": 39,
}  # fmt: skip
# The kernel for heads of at most so many values: name, warps, bytes of a warp's cached tokens.
KERNELS = {64: ("hk_token_64", 12, 8704), 128: ("hk_token_128", 12, 8704), 256: ("hk_token8_256", 8, 17408)}
LEAST = 5  # launches that it replaces: fewer cost no more than its own start and end
Span = tuple[int, int]  # device addresses [first, end)


class NotForToken(Exception):
    """Why a launch cannot become an instruction."""


@dataclass
class Instruction:
    """One instruction: its struct's bytes, and what it reads and writes of what a step changes."""

    kind: int
    body: bytes
    formats: list[str] = field(default_factory=list)
    reads: list[Span] = field(default_factory=list)
    writes: list[Span] = field(default_factory=list)
    lost: list[Span] = field(default_factory=list)  # what the launches would have left in place, and this does not
    waits: int = 0  # how many times blocks have met, once they did so in front of it; 0 where they do not
    tiles: int = 0  # of a block, at most
    input: int = 0  # bytes of shared memory
    head: int = 0  # values of a head

    @property
    def piece(self) -> int:
        """Bytes of a step of its weights, at most."""
        return max((256 // LAYOUTS[t].columns * LAYOUTS[t].nbytes for t in self.formats), default=0)

    def packed(self) -> bytes:
        """As hk_instruction."""
        made = np.array([self.kind, self.waits], np.int32).tobytes()
        for i in range(2):
            t = self.formats[i] if i < len(self.formats) else None
            layout = LAYOUTS[t] if t else None
            values = [IDS[t], layout.columns, layout.nbytes, layout.meta] if t and layout else [0, 256, 0, 0]
            made += np.array(values, np.int32).tobytes()
        made += self.body
        assert len(made) <= INSTRUCTION
        return made.ljust(INSTRUCTION, b"\0")


def _span(at: Any, values: Any) -> list[Span]:
    return [(int(at), int(at) + 4 * int(values))] if int(at) else []


def _overlaps(some: Sequence[Span], others: Sequence[Span]) -> bool:
    return any(a0 < b1 and b0 < a1 for a0, a1 in some for b0, b1 in others)


def _covers(writes: Sequence[Span], span: Span) -> bool:
    return any(w0 <= span[0] and span[1] <= w1 for w0, w1 in writes)


def _formats(function: str) -> list[str]:
    """Of a matrix-vector launch."""
    name = function.removeprefix("hk_matvec_")
    for first in IDS:
        if name == first.lower():
            return [first]
        for second in IDS:
            if name == f"{first}_{second}".lower():
                return [first, second]
    raise NotForToken(f"{function} is not one of its products")


def _products(launch: Launch, processors: int) -> Instruction:
    args, formats = launch.args.copy(), _formats(launch.function)
    parts = [args["part"][i] for i in range(2 if args["glu"] else int(args["n_parts"]))]
    tiles = [ceil_div(int(p["rows"]), TILE) for p in (parts[:1] if args["glu"] else parts)]
    n_first = len(tiles) if args["glu"] else int(args["n_first"])
    first, second = sum(tiles[:n_first]), sum(tiles[n_first:])
    for name, n in (("tiles", first // processors), ("more_tiles", first % processors),
                    ("other_tiles", second // processors), ("other_more_tiles", second % processors)):  # fmt: skip
        args[name] = n
    steps = ceil_div(int(args["cols"]), 256)
    most = ceil_div(first, processors) * (2 if args["glu"] else 1) + ceil_div(second, processors)
    written = parts[:1] if args["glu"] else parts
    return Instruction(
        PRODUCTS, args.tobytes(), formats,
        reads=[s for p in parts for s in _span(p["add"], p["rows"])] + _span(args["x"], args["cols"]),
        writes=[s for p in written for s in _span(p["out"], p["rows"])],
        tiles=most, input=steps * (STEP_CODES + 8 * sum(LAYOUTS[t].meta for t in formats)),
    )  # fmt: skip


def _rows(launch: Launch) -> Instruction:
    args, width = launch.args, launch.args["width"]
    if args["half"]:
        raise NotForToken("a row operation hands on another form than float32")
    reads = [s for name in ("x", "y", "add") for s in _span(args[name], width)]
    return Instruction(ROWS, args.tobytes(), reads=reads, writes=_span(args["out"], width), tiles=2)


def _attend(heads: Launch, launch: Launch, warps: Callable[[int], int], processors: int) -> Instruction:
    h, args = heads.args.copy(), launch.args.copy()
    cache, n_head = args["cache"], int(args["n_head"])
    streams = [h["stream"][i].copy() for i in range(int(h["n_streams"]))]
    queries = [s for s in streams if not s["store"]]
    stored = sorted((s for s in streams if s["store"]), key=lambda s: int(s["store"]))
    if not queries:
        queries = [np.zeros((), a.STREAM)]
        a.fill(queries[0], {"x": args["q"], "n_heads": n_head, "dim": cache["dim_k"]})
    fits = [int(s["store"]) for s in stored] == [1, 2] and len(queries) == 1
    fits = fits and queries[0]["x"] == args["q"] and queries[0]["dim"] == cache["dim_k"]
    if not fits or any(s["n_heads"] != cache["n_kv"] for s in stored):
        raise NotForToken("attention's queries, keys and values are not prepared in one operation")
    group = n_head // int(cache["n_kv"])
    units = int(cache["n_kv"]) * ceil_div(group, 8)
    if units > processors:
        raise NotForToken(f"{n_head} heads need more than {processors} blocks")
    for i, stream in enumerate((queries[0], *stored)):
        h["stream"][i] = stream
    h["n_streams"] = 3
    args["splits"] = max(1, min(processors // units, int(args["splits"])))
    size = head_size(max(int(cache["dim_k"]), int(cache["dim_v"])))
    spans = [_span(s["x"], s["n_heads"] * s["dim"])[0] for s in (queries[0], *stored)]
    angles = [s for stream in (queries[0], *stored) for s in _span(stream["angles"], 2 * stream["half"])]
    scratch = 32 * warps(size) * 16 + (8 * int(args["splits"]) + 8) * 4 + 16
    return Instruction(
        ATTEND, h.tobytes() + args.tobytes(), reads=spans + angles,
        writes=_span(args["out"], n_head * int(cache["dim_v"])), lost=spans, head=size,
        input=max(20 * size * 4, scratch),
    )  # fmt: skip


def instructions(launches: Sequence[Launch], processors: int) -> list[Instruction]:
    """Launches as instructions, in order. Raises NotForToken."""
    made: list[Instruction] = []
    heads: Launch | None = None
    for one in launches:
        if heads is not None and not one.function.startswith("hk_decode"):
            raise NotForToken("heads are prepared, and no attention follows")
        if one.function == "hk_heads":
            heads = one
        elif one.function.startswith("hk_decode"):
            if heads is None:
                raise NotForToken("attention without new keys and values")
            made.append(_attend(heads, one, lambda size: KERNELS[size][1], processors))
            heads = None
        elif one.function.startswith("hk_matvec"):
            made.append(_products(one, processors))
        elif one.function in ("hk_rows", "hk_elements"):
            made.append(_rows(one))
        else:
            raise NotForToken(f"{one.function} is not an instruction")
    _check_lost(made)
    _add_waits(made)
    return made


def _check_lost(made: Sequence[Instruction]) -> None:
    for i, one in enumerate(made):
        spans = list(one.lost)
        for later in made[i + 1 :]:
            if _overlaps(spans, later.reads):
                raise NotForToken("rotated queries or keys are read by more than attention")
            spans = [s for s in spans if not _covers(later.writes, s)]


def _add_waits(made: Sequence[Instruction]) -> None:
    """Blocks meet in front of whatever touches what was written since they last met, or writes what was read."""
    reads: list[Span] = []
    writes: list[Span] = []
    met = 0
    for one in made:
        if _overlaps(one.reads, writes) or _overlaps(one.writes, reads + writes):
            met += 1
            one.waits = met
            reads, writes = [], []
        reads += one.reads
        writes += one.writes


@dataclass(frozen=True)
class TokenShape:
    """The kernel's launch: name, warps, bytes of a warp's weights, most tiles of a block, bytes of input, of all."""

    kernel: str
    warps: int
    ring: int
    tiles: int
    input: int
    shared: int


def shape_of(made: Sequence[Instruction], limit: int) -> TokenShape:
    """As csrc/cuda/token.cu lays its memory out. Raises NotForToken where it does not fit."""
    name, warps, area = KERNELS[max((i.head for i in made), default=0) or 64]
    tiles, needed = max(2, *(i.tiles for i in made)), ceil_div(max(i.input for i in made), 16) * 16
    known = TAPE * INSTRUCTION + warps * (12 * PIECES + 144) + 112  # block_memory
    fixed = ceil_div(known, 128) * 128 + 64 * tiles + needed
    ring = (limit - fixed) // warps // 128 * 128
    piece = max(i.piece for i in made)
    if ring < area + piece:
        raise NotForToken(f"{fixed + warps * (area + piece)} bytes of shared memory are needed, and {limit} are there")
    return TokenShape(name, warps, ring, tiles, needed, fixed + warps * ring)


def known_runs(launches: Sequence[Launch]) -> list[tuple[int, int]]:
    """Runs of launches [first, end) that may become instructions and are long enough to gain by it."""
    fits = [_is_known(one.function) for one in launches]
    runs, first = [], 0
    for i, ok in enumerate([*fits, False]):
        if not ok:
            if i - first >= LEAST:
                runs.append((first, i))
            first = i + 1
    return runs


def _is_known(function: str) -> bool:
    if function.startswith("hk_matvec_"):
        return not function.endswith(("_f32", "_f16", "_bf16"))
    return function.startswith("hk_decode") or function in ("hk_heads", "hk_rows", "hk_elements")


def require(capability: tuple[int, int]) -> None:
    """Raise NotForToken unless the kernel is for such a GPU."""
    if capability != CAPABILITY:
        raise NotForToken("the kernel is for GPUs of compute capability 9.0")


def fold(
    launches: Sequence[Launch], step: dict[str, Any], *, processors: int, limit: int, has: Callable[[str], bool],
    put: Callable[[bytes], int], arrived: Callable[[], int], stamps: int = 0,
) -> list[Launch]:  # fmt: skip
    """The launches with one in the place of every run that the kernel knows. Raises NotForToken, saying why not.

    limit: bytes of shared memory of a block. has: whether there is a kernel. put: copies bytes to the device, and
    returns where they are. arrived: where two zero ints are there.
    """
    out: list[Launch] = []
    end = 0
    for first, behind in known_runs(launches):
        made = instructions(launches[first:behind], processors)
        shape = shape_of(made, limit)
        if not has(shape.kernel):
            raise NotForToken(f"the images have no {shape.kernel}")
        args = a.pack(
            a.TOKEN, step=step, tape=put(b"".join(i.packed() for i in made)), arrived=arrived(), stamps=stamps,
            n=len(made), ring=shape.ring, tiles=shape.tiles, input=shape.input,
        )  # fmt: skip
        grid, block = (processors, 1, 1), (32 * shape.warps, 1, 1)
        out += [*launches[end:first], Launch(shape.kernel, grid, block, shape.shared, args, together=True)]
        end = behind
    if not out:
        others = sorted({one.function for one in launches if not _is_known(one.function)})
        raise NotForToken(f"too little stands between {', '.join(others)}")
    return [*out, *launches[end:]]
