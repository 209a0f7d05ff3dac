"""CpuSet: the kernel set of this CPU, as the engine uses it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridkern.kernels.interface import Buffer, Op

from .build import CacheLayout, TapeBuilder
from .fusion import fuse
from .selection import chosen_name, runnable, table_named
from .weights import CpuWeights, Progress, Source


class CpuTape:
    """A tape over packed weights. Programs add their segments to it; they share its buffers."""

    def __init__(self, builder: TapeBuilder, logits: Buffer | None) -> None:
        self._builder, self._logits = builder, logits
        self.native = builder.tape

    def add(self, segments: Sequence[Sequence[Op]]) -> list[tuple[int, int]]:
        """Appends the operations of segments, the last of which makes the logits, if they are made here; between which
        numbers each lies."""
        last = len(segments) - 1
        return self._builder.build([fuse(ops, self._logits if k == last else None) for k, ops in enumerate(segments)])

    def end(self, b: Buffer) -> tuple[int, int]:
        """Where a buffer or view lies, and the values from row to row."""
        return self._builder.end(b)

    @property
    def buffer_bytes(self) -> int:
        """Of everything that steps compute."""
        return self._builder.nbytes

    def poison(self) -> None:
        """Fill all buffers with NaN bytes: tests show by it that nothing is read that was not written."""
        for memory in self._builder.memory:
            np.frombuffer(memory, np.uint8)[:] = 0xFF


class CpuSet:
    """One instruction set's kernels. name: None is the best that this CPU runs, or what HYBRIDKERN_CPU says.

    Raises KernelError for a name that does not exist or that this CPU cannot run.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = chosen_name(name)
        self.table = table_named(self.name)
        self.weights: CpuWeights | None = None
        self.weight_bytes = 0  # packed
        self.raw_bytes = 0  # of weights that stay as they lie in the file

    def lower(
        self,
        ops: Sequence[Op],
        *,
        logits: Buffer | None,
        cache: CacheLayout,
        max_rows: int,
        max_outputs: int,
        threads: int = 1,
        progress: Progress | None = None,
        repack: bool = True,
        source: Source | None = None,
    ) -> CpuTape:
        """Pack the weights of recorded operations; the tape is still empty.

        `logits` is the buffer that each step's slot provides, None where they are made elsewhere. progress(done, total)
        hears of packed bytes. repack: False multiplies raw rows. source: the file of the weights, which is given back
        as they are packed.
        """
        weights = CpuWeights(
            (op.args[1] for op in ops if op.kind == "matmul"),
            threads,
            progress,
            tables=[op.args[0] for op in ops if op.kind == "embed"],
            repack=repack,
            source=source,
        )
        self.weights, self.weight_bytes, self.raw_bytes = weights, weights.nbytes, weights.raw_bytes
        return CpuTape(TapeBuilder(self.table, weights, cache, logits, max_rows, max_outputs), logits)

    def describe(self) -> str:
        """The set, and every format or operation whose kernels come from a lower one."""
        lines = [f"CPU kernel set {self.name} (usable here: {', '.join(runnable())})"]
        origins = self.table.origins()
        (ops,) = origins.pop("ops")
        if ops != self.name:
            lines.append(f"  float operations and attention: {ops}")
        lower: dict[tuple[str, str], list[str]] = {}
        for name, functions in origins.items():
            what_of = ("gemv", "gemm", "dequantise", "gemv of raw rows")
            for what, isa in zip(what_of, functions, strict=True):
                if isa != self.name and isa != "none":
                    lower.setdefault((what, isa), []).append(name)
        lines += [f"  {what} from {isa}: {', '.join(names)}" for (what, isa), names in lower.items()]
        return "\n".join(lines)
