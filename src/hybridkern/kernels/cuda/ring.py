"""The ring that weights of main memory pass through on their way to a GPU's kernels: where they lie in it, and what is
copied and converted when. Nothing here touches a device.

A streamed block has a slot of the ring: block b of the streamed ones slot b % depth, at addresses that do not change,
so that a step is one graph. Its bytes come in fills: a staging area on the device takes what the copy engine brings,
and is converted into the slot from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hybridkern.kernels.cpu.weights import panel_bytes
from hybridkern.kernels.interface import Weight
from hybridkern.kernels.streamed import HostSource, Key, key_of

from .layout import TILE, device_bytes, row_offset

FILL = 16 << 20  # bytes of a staging area: smaller copies are slower, larger ones delay the first conversion
AREAS = 4  # staging areas on the device, and page-locked ones where memory cannot be registered
ALIGN = 256
RING, STAGING = "stream ring", "stream staging"  # purposes in nbytes


def padded(n: int, multiple: int = ALIGN) -> int:
    """n rounded up to a multiple."""
    return -(-n // multiple) * multiple


@dataclass(frozen=True)
class Conversion:
    """Rows of a matrix, `start` bytes into a staging area, become the device layout `to` bytes into a slot. nbytes: in
    main memory."""

    weight: Weight
    packed: bool
    start: int
    nbytes: int
    to: int
    rows: int


@dataclass
class Fill:
    """What a staging area takes at a time. copies: (address in main memory, start in the area, bytes)."""

    copies: list[tuple[int, int, int]] = field(default_factory=list)
    conversions: list[Conversion] = field(default_factory=list)
    end: int = 0

    def _goes_on(self, source: int) -> bool:
        return bool(self.copies) and self.copies[-1][0] + self.copies[-1][2] == source

    def room(self, source: int, area: int) -> int:
        """Bytes at `source` that still fit."""
        return area - (self.end if self._goes_on(source) else padded(self.end))

    def add(self, w: Weight, packed: bool, source: int, nbytes: int, to: int, rows: int) -> None:
        """One more part; where the memory goes on, the copy does."""
        if self._goes_on(source):
            start = self.end
            first, at, n = self.copies[-1]
            self.copies[-1] = first, at, n + nbytes
        else:
            start = padded(self.end)
            self.copies.append((source, start, nbytes))
        self.conversions.append(Conversion(w, packed, start, nbytes, to, rows))
        self.end = start + nbytes


def tile_bytes(w: Weight, packed: bool) -> int:
    """Bytes of 16 rows in main memory."""
    return panel_bytes(w) if packed else TILE * int(w.data.strides[0])


def host_bytes(w: Weight, packed: bool) -> int:
    """Bytes of the matrix in main memory."""
    return -(-w.rows // TILE) * panel_bytes(w) if packed else w.rows * int(w.data.strides[0])


class Ring:
    """The layout of a ring for the streamed matrices of some blocks, in order. depth: blocks that it holds, at most."""

    def __init__(self, blocks: Sequence[Sequence[Weight]], depth: int) -> None:
        self.blocks = [list({key_of(w): w for w in block}.values()) for block in blocks]
        self.depth = max(1, min(depth, len(blocks)))
        self._places: dict[Key, tuple[int, int]] = {}
        self.slot_bytes = 0
        most = 0
        for i, block in enumerate(self.blocks):
            at = total = 0
            for w in block:
                self._places[key_of(w)] = i, at
                at += padded(device_bytes(w.type, w.rows, w.cols))
                total += padded(host_bytes(w, True)) + ALIGN
            self.slot_bytes, most = max(self.slot_bytes, at), max(most, total)
        tiles = [tile_bytes(w, packed) for block in self.blocks for w in block for packed in (False, True)]
        self.area_bytes = padded(max(min(FILL, most), *tiles, 1)) if tiles else 0

    @property
    def nbytes(self) -> dict[str, int]:
        """Device memory by purpose."""
        return {RING: self.depth * self.slot_bytes, STAGING: AREAS * self.area_bytes}

    def block_of(self, w: Weight) -> int | None:
        """Which block streams a matrix; None if none does."""
        place = self._places.get(key_of(w))
        return None if place is None else place[0]

    def offset(self, w: Weight) -> int:
        """Where in the ring a matrix lies when its block is there."""
        block, at = self._places[key_of(w)]
        return block % self.depth * self.slot_bytes + at

    def fills(self, block: int, sources: Mapping[Key, HostSource]) -> Iterator[Fill]:
        """How a block comes into its slot, in order of memory. Offsets are those of `offset`."""
        made = Fill()
        for w in sorted(self.blocks[block], key=lambda w: sources[key_of(w)].address):
            source = sources[key_of(w)]
            tile, whole, base = tile_bytes(w, source.packed), host_bytes(w, source.packed), self.offset(w)
            row = 0
            while row < w.rows:
                at = row // TILE * tile
                fit = made.room(source.address + at, self.area_bytes) // tile * TILE
                rows = min(w.rows - row, fit)
                if rows < min(TILE, w.rows - row):
                    yield made
                    made = Fill()
                    continue
                nbytes = min(-(-rows // TILE) * tile, whole - at)
                made.add(w, source.packed, source.address + at, nbytes, base + row_offset(w.type, row, w.cols), rows)
                row += rows
        if made.copies:
            yield made


def ring_bytes(blocks: Sequence[Sequence[Weight]], depth: int) -> dict[str, int]:
    """Device memory, by purpose, that streaming takes: the streamed matrices of each block, blocks held at a time."""
    return Ring(blocks, depth).nbytes if blocks else {}
