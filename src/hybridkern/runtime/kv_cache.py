"""The paged KV cache of one set: pages of 128 tokens, shared between sequences until one of them writes.

A page holds the K and V planes of every block, so that one page id, one copy and one count serve the whole model. Where
pages lie is the business of the part of the model that computes with them.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from hybridkern.errors import ArgumentError, ContextError, KernelError

PAGE = 128


class Pages(Protocol):
    """The memory of n_pages pages."""

    @property
    def page_bytes(self) -> int: ...

    def copy_page(self, to: int, source: int) -> None: ...

    def fill_page(self, page: int, byte: int) -> None: ...


class KVCache:
    """Sequences 0 .. n_seq - 1 over n_pages pages.

    `table` is int32 [n_seq][max_pages]: page ids by position / 128, as a step reads them. `lengths`: tokens by
    sequence; a decoding that is armed counts on in it.

    Ctrl-C may end any method between two of its lines. The order of the lines is such that at worst a page stays
    unused: a page is counted before a sequence has it, and given up only after no sequence has it.
    """

    def __init__(self, pages: Pages, *, n_ctx: int, n_seq: int, n_pages: int) -> None:
        self.memory = pages
        self.n_ctx, self.n_seq, self.n_pages = n_ctx, n_seq, n_pages
        self.max_pages = max_pages(n_ctx)
        self.table = np.zeros((n_seq, self.max_pages), np.int32)
        self._free = list(range(n_pages - 1, -1, -1))
        self._counts = [0] * n_pages
        self._pages: list[list[int] | None] = [None] * n_seq
        self.lengths = [0] * n_seq

    # sequences

    def new(self, given: set[int] | None = None) -> int:
        """An empty sequence; its number stands in `given` before it exists. ContextError when there are n_seq."""
        for s, pages in enumerate(self._pages):
            if pages is None:
                if given is not None:
                    given.add(s)
                self._pages[s], self.lengths[s] = [], 0
                return s
        raise ContextError(f"all {self.n_seq} sequences of the cache are in use: free one (n_seq)")

    def fork(self, sequence: int, given: set[int] | None = None) -> int:
        """A second sequence with the same past, sharing its pages."""
        pages = self._of(sequence)
        s = self.new(given)
        for p in pages:
            self._counts[p] += 1
        self.table[s, : len(pages)] = pages
        self._pages[s], self.lengths[s] = list(pages), self.lengths[sequence]
        return s

    def truncate(self, sequence: int, position: int) -> None:
        """Forget everything from `position` on."""
        pages = self._of(sequence)
        if not 0 <= position <= self.lengths[sequence]:
            raise ArgumentError(f"cannot cut a sequence of {self.lengths[sequence]} tokens at position {position}")
        keep = -(-position // PAGE)
        dropped = pages[keep:]
        self.lengths[sequence] = position
        del pages[keep:]
        for p in dropped:
            self._drop(p)

    def free(self, sequence: int) -> None:
        """End a sequence."""
        self.truncate(sequence, 0)
        self._pages[sequence] = None

    def holds(self, sequence: int) -> bool:
        """Whether there is such a sequence."""
        return self._pages[sequence] is not None

    def length(self, sequence: int) -> int:
        """Tokens of a sequence."""
        self._of(sequence)
        return self.lengths[sequence]

    def reserve(self, sequence: int, n: int) -> int:
        """Make room for n more tokens, with pages that no other sequence shares; returns the length so far.

        Nothing changes when it raises ContextError.
        """
        pages, length = self._of(sequence), self.lengths[sequence]
        if length + n > self.n_ctx:
            raise ContextError(
                f"the sequence holds {length} tokens and {n} more were asked for, but the context holds "
                f"{self.n_ctx} (n_ctx)"
            )
        more = max(0, -(-(length + n) // PAGE) - len(pages))
        shared = n > 0 and length % PAGE != 0 and self._counts[pages[length // PAGE]] > 1
        if more + shared > len(self._free):
            raise ContextError(
                f"the KV cache is full: {self.n_pages} pages of {PAGE} tokens, {len(self._free)} free, "
                f"{more + shared} needed for {n} more tokens of a sequence of {length}"
            )
        if shared:
            self._copy_on_write(sequence, length // PAGE)
        for _ in range(more):
            self._append(sequence)
        return length

    def advance(self, sequence: int, n: int) -> None:
        """Count n tokens that a step has written."""
        self.lengths[sequence] += n

    def give_back(self, sequence: int) -> None:
        """Drop pages beyond the length, after a step that did not happen."""
        self.truncate(sequence, self.lengths[sequence])

    @property
    def free_pages(self) -> int:
        """Pages that no sequence uses."""
        return len(self._free)

    def poison(self) -> None:
        """Fill free pages with NaN bytes: tests show by it that no unwritten memory reaches a result."""
        for page in self._free:
            self.memory.fill_page(page, 0xFF)

    def _of(self, sequence: int) -> list[int]:
        pages = self._pages[sequence] if 0 <= sequence < self.n_seq else None
        if pages is None:
            raise ArgumentError(f"there is no sequence {sequence}")
        return pages

    def _take(self) -> int:
        if not self._free:
            raise KernelError("no free page")  # reserve has counted them
        page = self._free.pop()
        self._counts[page] = 1
        return page

    def _drop(self, page: int) -> None:
        self._counts[page] -= 1
        if self._counts[page] == 0:
            self._free.append(page)

    def _append(self, sequence: int) -> None:
        pages, made = self._of(sequence), self._take()
        self.table[sequence, len(pages)] = made
        pages.append(made)

    def _copy_on_write(self, sequence: int, index: int) -> None:
        pages = self._of(sequence)
        old = pages[index]
        made = self._take()
        self.memory.copy_page(made, old)
        self.table[sequence, index] = made
        pages[index] = made
        self._drop(old)


def max_pages(n_ctx: int) -> int:
    """Of one sequence of n_ctx tokens."""
    return -(-n_ctx // PAGE)
