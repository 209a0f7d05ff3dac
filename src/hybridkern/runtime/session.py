"""A session: one sequence of the engine, and what was already computed for it.

`ids` are the tokens whose keys and values stand in the cache. What is asked next keeps the longest prefix that it
shares with them; the rest is cut off and computed. Model and sessions may be used from several threads: calls queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hybridkern.errors import ArgumentError, ContextError, HybridKernError
from hybridkern.kernels import _cpu

from .arguments import row_indices, token_ids
from .generation import Request, generate

if TYPE_CHECKING:
    from .model_api import Model
    from .piece import Piece

T = TypeVar("T")
# A step notices at once when it touches a page that a mapped file has lost; only the size tells that the file was cut
# within its last page. Asking for it after every token would be half of a token's Python.
FILE_CHECK_SECONDS = 0.25


class Session:
    """A sequence of one model. Made by `Model.session`; `close` gives its part of the KV cache back."""

    def __init__(self, model: Model, sequence: int, ids: Iterable[int] = (), variant: int = 0) -> None:
        self.model = model
        self.ids: list[int] = list(ids)
        self.n_prompt = 0  # length of the last prompt
        self._sequence: int | None = sequence
        self._variant = variant  # which rotary table the cache was written with, see `LoadedModel.long_after`
        self._torn = False  # a call did not return: the cache may hold more or less than `ids` say
        self._asked = 0
        check = model.file.check_intact if model.file.mmap else None
        self._decoding = _cpu.Decoding(model.turn.lock, self.ids, check, FILE_CHECK_SECONDS)
        #: Appends a token and gives (likeliest next token, its log-probability), or None: use `advance_greedy` then.
        self.next_greedy = self._decoding.step

    def generate(self, prompt: str | Sequence[int], **options: Any) -> Iterator[Piece]:
        """Pieces of text that continue `prompt`, the whole text so far. Options: see `Model.generate`."""
        request = Request.of(self.model, self.model.prompt_ids(prompt), **options)
        return generate(self.model, request, self)

    def chat(self, messages: Sequence[Any], **options: Any) -> Iterator[Piece]:
        """Pieces of the answer to `messages`, the whole conversation so far. Options: see `Model.chat`."""
        ids, options = self.model.chat_ids(messages, options)
        return generate(self.model, Request.of(self.model, ids, **options), self)

    def logits(self, ids: Sequence[int], rows: Iterable[int] | None = None) -> np.ndarray:
        """Logits behind the tokens `ids`, the whole sequence: float32 [rows][n_vocab]; rows: which positions."""
        tokens = token_ids("ids", ids, self.model.n_vocab)
        if not tokens:
            raise ArgumentError("ids is empty: there is no position to compute logits at")
        wanted = row_indices(rows, len(tokens))
        if not wanted:
            return np.empty((0, self.model.n_vocab), np.float32)
        self.take_over()
        order = sorted(set(wanted))
        self.keep_prefix(tokens, order[0])
        start = len(self.ids)
        made = self.advance(tokens[start:], [row - start for row in order])
        if order == wanted:
            return made.copy() if len(made) == 1 else made  # one row is a view of the engine's memory
        place = {row: i for i, row in enumerate(order)}
        return made[[place[row] for row in wanted]]

    def fork(self) -> Session:
        """A second session with the same past; the two share it in memory."""
        model = self.model
        with model.turn:
            self._mend()
            return model.own(model.engine.fork(self._open(), model.given), self.ids, self._variant)

    def close(self) -> None:
        """Give the sequence back. Pieces still expected from it raise an error."""
        if self._sequence is not None:
            self._decoding.disarm()
            self._sequence = None
            self.model.release()

    @property
    def sequence(self) -> int | None:
        """The engine's number of the sequence, None once closed."""
        return self._sequence

    def __repr__(self) -> str:
        state = "closed" if self._sequence is None else f"{len(self.ids)} of {self.model.n_ctx} tokens"
        return f"<hybridkern.Session of {self.model!r}, {state}>"

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_sequence", None) is not None:
            self.close()

    # What generation is made of.

    def take_over(self) -> int:
        """Begin something new; what was under way here before finds out by `check`."""
        self._open()
        self._asked += 1
        self._decoding.disarm()
        return self._asked

    def check(self, asked: int) -> None:
        """Raise unless what began as `asked` is still what this session works on."""
        if asked != self._asked:
            raise HybridKernError("this session was asked something else meanwhile: its earlier pieces ended there")

    def keep_prefix(self, ids: list[int], last: int) -> None:
        """Cut the cache back to what it shares with `ids`, and to before position `last`, whose logits are wanted."""
        if len(ids) > self.model.n_ctx:
            raise ContextError(f"the prompt has {len(ids)} tokens, but the context holds {self.model.n_ctx} (n_ctx)")
        keep = min(_common(self.ids, ids), last)
        # A LongRoPE model turns short and long sequences by different angles.
        if self._variant != self._wanted_variant(len(ids)):
            keep = 0
        with self.model.turn:
            self._mend(keep)

    def advance(self, tokens: list[int], rows: list[int]) -> np.ndarray:
        """Append tokens; logits at `rows` of them, float32 [rows][n_vocab], one row being a view soon overwritten."""
        return self._append(
            tokens, lambda s, t, at: self.model.engine.evaluate(s, t, rows=at, variant=self._variant), rows
        )

    def advance_greedy(self, tokens: list[int]) -> tuple[int, float]:
        """Append tokens; the likeliest next one and its log-probability."""
        return self._append(
            tokens, lambda s, t, at: self.model.engine.greedy(s, t, variant=self._variant), None, arm=True
        )

    def advance_top(self, token: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Append a token; the likeliest next ones, see `Engine.top`."""
        return self._append([token], self._top, None)

    def _top(self, sequence: int, tokens: list[int], rows: Any) -> tuple[np.ndarray, np.ndarray, float]:
        engine = self.model.engine
        if len(tokens) > 1:  # everything again, by another rotary table
            engine.evaluate(sequence, tokens[:-1], "none", variant=self._variant)
        return engine.top(sequence, tokens[-1], variant=self._variant)

    def check_file(self) -> None:
        """Raise GGUFError where what `next_greedy` gave cannot be trusted: it looks at the file only now and then."""
        with self.model.turn:
            self.model.check_file()

    def _append(
        self, tokens: list[int], call: Callable[[int, list[int], Any], T], rows: list[int] | None, arm: bool = False
    ) -> T:
        with self.model.turn:
            sequence = self._open()
            self._mend()
            wanted = self._wanted_variant(len(self.ids) + len(tokens))
            if self._variant != wanted:
                tokens = self.ids + tokens
                rows = None if rows is None else [row + len(self.ids) for row in rows]
                self._mend(0)
                self._variant = wanted
            self._torn = True
            result = call(sequence, tokens, rows)
            self.model.check_file()
            self.ids += tokens
            self._torn = False
            if arm:
                self._arm(sequence)
            return result

    def _arm(self, sequence: int) -> None:
        """Let `next_greedy` go on from here, up to where the rotary table changes."""
        model = self.model
        before = model.n_ctx if model.long_after is None or self._variant else model.long_after
        model.engine.arm(self._decoding, sequence, self._variant, before)

    def _mend(self, keep: int | None = None) -> None:
        """Make the cache hold `ids`, or their first `keep`."""
        if keep is not None and keep < len(self.ids):
            del self.ids[keep:]
            self._torn = True
        if self._torn:
            self.model.engine.truncate(self._open(), len(self.ids))
            self._torn = False

    def _wanted_variant(self, n: int) -> int:
        limit = self.model.long_after
        return 1 if limit is not None and n > limit else 0

    def _open(self) -> int:
        if self.model.closed:
            raise HybridKernError("the model is closed")
        if self._sequence is None:
            raise HybridKernError("the session is closed")
        return self._sequence


def _common(a: list[int], b: list[int]) -> int:
    """The length of the longest common prefix."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
