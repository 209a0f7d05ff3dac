"""The kernels of csrc/cuda/wgmma.cu, and which of them serves a product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .launches import STEP, Tile
from .layout import LAYOUTS

WGMMA_KERNEL = "hk_wgmma128_q4_k"  # is there if the images have code for warpgroups


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
