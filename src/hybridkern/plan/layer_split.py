"""Several GPUs: runs of blocks, in proportion to what each can take."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .assignment import CPU
from .devices import Gpu
from .inventory import Inventory
from .rules import ANY_GPU


def gpu_of_blocks(
    inventory: Inventory, gpus: Sequence[Gpu], shares: Sequence[float], wanted: Mapping[str, str], kv: Sequence[str],
    streamed: Collection[int],
) -> dict[int | None, str]:  # fmt: skip
    """The GPU of every block, and under None that of what belongs to none. shares: of the GPUs, by default their
    memory; wanted: device of every matrix, or ANY_GPU; kv: of every cache; streamed: blocks."""
    names = [g.name for g in gpus]
    if len(names) <= 1:
        return dict.fromkeys([None, *range(len(kv))], names[0] if names else CPU)
    weight = []
    for b in inventory.blocks:
        here = sum(m.file_bytes for m in b.matrices if wanted[m.name] == ANY_GPU)
        weight.append(here + (1 if kv[b.index] == ANY_GPU or b.index in streamed else 0))
    total, parts = sum(weight) or 1, shares or tuple(float(g.usable) for g in gpus)
    bounds, at = [], 0.0
    for s in parts:
        at += s / sum(parts)
        bounds.append(at)
    out: dict[int | None, str] = {None: names[-1]}
    done = 0
    for i, w in enumerate(weight):
        middle = (done + w / 2) / total
        out[i] = names[next((j for j, b in enumerate(bounds[: len(names)]) if middle <= b), len(names) - 1)]
        done += w
    return out
