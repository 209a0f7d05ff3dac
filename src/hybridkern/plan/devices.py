"""What the plan knows of this machine's memory: the GPUs, and main memory."""

from __future__ import annotations

from dataclasses import dataclass

from hybridkern.kernels.cuda.sizing import Limits

MIB = 1 << 20
H200 = Limits()
CONTEXT_BYTES = 560 * MIB  # what CUDA takes for a context and this package's kernels (529 MiB on an H200)
GRAPH_BYTES = 32 * MIB  # what it takes for graphs and streams of a model, and rounding to its pages of 2 MiB
MARGIN = 256 * MIB  # left free of what is free; nothing of a budget that was given


@dataclass(frozen=True)
class Gpu:
    """A GPU. name: "cuda0", ...; free: bytes that could be had when it was asked, CUDA's own context apart; budget:
    bytes that may be used in all, `context` among them, None: whatever is free; margin: bytes to leave."""

    name: str
    label: str
    free: int
    budget: int | None = None
    margin: int = MARGIN
    context: int = CONTEXT_BYTES
    limits: Limits = H200
    pretended: bool = False

    @property
    def usable(self) -> int:
        """Bytes for weights, caches and buffers, and for what CUDA takes for graphs."""
        within = self.free if self.budget is None else min(self.free, self.budget - self.context)
        return max(0, within - self.margin)


@dataclass(frozen=True)
class Host:
    """Main memory. free: bytes that can be had, None: unknown; threads: that compute."""

    free: int | None = None
    threads: int = 1
