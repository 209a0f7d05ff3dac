"""Products with many columns: their launches, the kernels of csrc/cuda/wgmma.cu, and which of them serves one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .launches import Launch, Struct, ceil_div, matmul_args
from .layout import LAYOUTS, TILE

STEP = 256  # columns that products go at a time
STAGES = 3  # chunks of tokens on their way without wgmma
WGMMA_KERNEL = "hk_wgmma128_q4_k"  # is there if the images have code for warpgroups


@dataclass(frozen=True)
class Tile:
    """A kernel of csrc/cuda/wgmma.cu.

    tokens: of a tile; groups, along: groups of four warps along the rows and along K; steps, chunks: of weights and of
    tokens on their way; split: blocks of a cluster that share out K."""

    name: str
    tokens: int
    groups: int
    along: int
    steps: int
    chunks: int
    split: int = 1

    @property
    def threads(self) -> int:
        """Of a block: those that multiply, and a warp that copies for every group along K; if registers go from
        it to the others, four."""
        groups = self.groups * self.along
        return 128 * groups + (128 if self.tokens * groups == 512 else 32 * self.along)

    def shared(self, type_name: str) -> int:
        """Bytes of shared memory."""
        layout = LAYOUTS[type_name]
        step = TILE * (2 * STEP + 64) if layout.is_float else STEP // layout.columns * layout.nbytes
        rings = self.chunks * self.tokens * 128 + self.steps * 4 * self.groups * step
        return rings + 16 * (self.steps + self.chunks) + 4 * self.tokens


def half_sizes(n: int, cols: int) -> tuple[int, int]:
    """Tokens of a chunk, and bytes of the half form of n rows (csrc/cuda/hk_rows.cuh)."""
    stride = ceil_div(n, 8) * 8
    return stride, ceil_div(cols, STEP) * STEP * stride * 2


def matmul(
    type_name: str,
    step: Struct,
    parts: list[Struct],
    cols: int,
    n: int,
    *,
    half: tuple[int, int],
    outputs: bool = False,
    processors: int = 132,
    tile: Tile | None = None,
) -> Launch:
    """Products of one input with at most n columns. half: its f16 form and scales; tile: of wgmma, where there is."""
    x, scale = half
    args = matmul_args(step, parts, cols, half_sizes(n, cols)[0], outputs, x=x, x_scale=scale)
    lower = type_name.lower()
    if tile is not None:
        tiles = sum(ceil_div(p["rows"], 64 * tile.groups) for p in parts)
        grid = (tiles * tile.split, ceil_div(n, tile.tokens), 1)
        return Launch(f"hk_wgmma{tile.name}_{lower}", grid, (tile.threads, 1, 1), tile.shared(type_name), args)
    if n > 64:
        grid = (sum(ceil_div(p["rows"], 128) for p in parts), ceil_div(n, 128), 1)
        return Launch(f"hk_matmul_{lower}", grid, (256, 1, 1), STAGES * 128 * 128, args)
    grid = (sum(ceil_div(p["rows"], 32) for p in parts), ceil_div(n, 32), 1)
    return Launch(f"hk_matmul32_{lower}", grid, (128, 1, 1), STAGES * 4 * 32 * 128, args)


@dataclass(frozen=True)
class Rated:
    """A tile, with what a block takes on the H200: microseconds for a step of 256 columns, and besides."""

    tile: Tile
    step: float
    fixed: float

    def cost(self, rows: Sequence[int], cols: int, n: int, processors: int) -> float:
        """Microseconds, about."""
        t = self.tile
        blocks = sum(-(-r // (64 * t.groups)) for r in rows) * t.split * -(-n // t.tokens)
        waves = -(-blocks // processors)
        return waves * (self.fixed + self.step * -(-cols // (STEP * t.split)))


QUANTISED = (
    Rated(Tile("32", 32, 1, 4, 8, 16), 0.5, 5.0),
    Rated(Tile("32s", 32, 1, 4, 8, 16, split=2), 0.5, 6.0),
    Rated(Tile("64", 64, 1, 4, 4, 16), 0.5, 5.0),
    Rated(Tile("64s", 64, 1, 4, 4, 16, split=2), 0.5, 6.0),
    Rated(Tile("128", 128, 2, 1, 2, 6), 2.0, 6.0),
    Rated(Tile("128s", 128, 1, 2, 2, 8, split=2), 1.0, 7.0),
    Rated(Tile("256", 256, 2, 1, 2, 4), 2.33, 7.0),
    Rated(Tile("256s", 256, 2, 1, 2, 4, split=2), 2.33, 10.0),
)
FLOATS = (
    Rated(Tile("64f", 64, 1, 2, 2, 16), 3.0, 5.0),
    Rated(Tile("128f", 128, 2, 1, 2, 4), 5.5, 7.0),
)


def serving(type_name: str) -> list[Tile]:
    """The kernels that are compiled for a format."""
    return [r.tile for r in (FLOATS if LAYOUTS[type_name].is_float else QUANTISED)]


def choose(type_name: str, rows: Sequence[int], cols: int, n: int, processors: int) -> Tile:
    """The kernel for a group of matrices of so many rows, and at most n columns."""
    rated = FLOATS if LAYOUTS[type_name].is_float else QUANTISED
    return min(rated, key=lambda r: r.cost(rows, cols, n, processors)).tile
