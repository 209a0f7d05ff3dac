"""hybridkern as an engine of the worker process: in comparisons where every engine has a process of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .timing import Workload, seconds

if TYPE_CHECKING:
    import numpy as np

UBATCH = 512


class HybridKern:
    """Through its public Python interface; see `Engine` in worker/llama.py."""

    name = "hybridkern"

    def __init__(self, path: str, threads: int = 2, n_ctx: int = 1024, **options: Any) -> None:
        import hybridkern

        self.version = hybridkern.__version__
        options = {"threads_batch": threads, "n_ubatch": UBATCH} | options
        self.model = hybridkern.load(path, threads=threads, n_ctx=n_ctx, **options)
        self.session = self.model.session()  # keeps its tokens, so that a deep context is filled once

    def tokenize(self, text: str, special: bool = False, bos: bool = False) -> list[int]:
        """Token ids of `text`."""
        return self.model.tokenize(text, special=special, bos=bos)

    def logits(self, ids: Sequence[int], batch: int = UBATCH) -> Iterator[np.ndarray]:
        """Of every position, `batch` of them at a time."""
        ids = list(ids)
        for start in range(0, len(ids), batch):
            stop = min(start + batch, len(ids))
            yield self.model.logits(ids[:stop], rows=range(start, stop))

    def seconds(self, prompt: Sequence[int], ids: Sequence[int], depth: int) -> float:
        """Of a prompt and of single steps behind it."""
        return seconds(self.session, Workload(len(prompt), len(ids), depth), [*prompt, *ids])
