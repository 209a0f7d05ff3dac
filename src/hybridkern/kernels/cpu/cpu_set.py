"""CpuSet: the kernel set of this CPU, as the engine uses it."""

from __future__ import annotations

from collections.abc import Sequence

from hybridkern.kernels import _cpu
from hybridkern.kernels.interface import Buffer, Op

from .build import CacheLayout, TapeBuilder
from .fusion import fuse
from .outputs import select_early
from .selection import chosen_name, runnable, table_named
from .weights import CpuWeights, Progress, Source


class CpuSet:
    """One instruction set's kernels. name: None is the best that this CPU runs, or what HYBRIDKERN_CPU says.

    Raises KernelError for a name that does not exist or that this CPU cannot run.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = chosen_name(name)
        self.table = table_named(self.name)
        self.weight_bytes = 0  # packed
        self.raw_bytes = 0  # of weights that stay as they lie in the file
        self.buffer_bytes = 0

    def lower(
        self,
        ops: Sequence[Op],
        *,
        logits: Buffer,
        cache: CacheLayout,
        max_rows: int,
        max_outputs: int,
        threads: int = 1,
        progress: Progress | None = None,
        repack: bool = True,
        source: Source | None = None,
    ) -> _cpu.Tape:
        """Pack the weights and build the tape of recorded operations.

        `logits` is the buffer that each step's slot provides. progress(done, total) hears of packed bytes. repack:
        False multiplies raw rows. source: the file of the weights, which is given back as they are packed.
        """
        fused = fuse(select_early(ops), logits)
        weights = CpuWeights(
            (p.args[1] for f in fused for p in f.products),
            threads,
            progress,
            tables=[op.args[0] for op in ops if op.kind == "embed"],
            repack=repack,
            source=source,
        )
        builder = TapeBuilder(self.table, weights, cache, logits, max_rows, max_outputs)
        tape = builder.build(fused)
        self.weight_bytes, self.raw_bytes = weights.nbytes, weights.raw_bytes
        self.buffer_bytes = builder.nbytes
        return tape

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
