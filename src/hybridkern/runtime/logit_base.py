"""Files of predictions: what a model thought of every scored token, for others to be compared with.

The layout is the one that llama.cpp's perplexity tool writes: "_logits_", uint32 n_ctx, int32 n_vocab, int32 chunks,
int32 tokens [chunks][n_ctx]; then for every scored position a row of uint16: two float32, `scale` and `least`, and
n_vocab codes (one more where n_vocab is odd); log-probability = least + scale * code. What is less likely than e^-16
times the likeliest token counts as that.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import numpy.typing as npt

from hybridkern.errors import ArgumentError
from hybridkern.gguf.targets import check_target

MAGIC = b"_logits_"
_HEAD = struct.Struct("<Iii")
_RANGE, _STEPS = 16.0, 65535


def _row_words(n_vocab: int) -> int:
    """uint16 words of one row."""
    return 4 + 2 * ((n_vocab + 1) // 2)


class LogitWriter:
    """Writes such a file, under its own name when `close` is called. A `with` block closes it, or drops it on an
    error."""

    def __init__(self, path: str | os.PathLike[str], chunks: Sequence[Sequence[int]], n_vocab: int) -> None:
        self.path = os.fspath(check_target(path))
        self._part = f"{self.path}.{os.getpid()}.part"
        self._n_vocab = n_vocab
        try:
            self._file = open(self._part, "wb")  # noqa: SIM115
        except OSError as error:
            raise ArgumentError(f"{self.path}: cannot be written: {error.strerror}") from error
        self._file.write(MAGIC + _HEAD.pack(len(chunks[0]), n_vocab, len(chunks)))
        self._file.write(np.asarray(chunks, "<i4").tobytes())

    def add(self, logits: npt.NDArray[np.float32]) -> None:
        """Append the rows of some positions, float32 [rows][n_vocab]."""
        rows = np.zeros((len(logits), _row_words(self._n_vocab)), "<u2")
        top = logits.max(axis=1, keepdims=True)
        low = np.maximum(logits.min(axis=1, keepdims=True), top - np.float32(_RANGE))
        sums = np.log(np.exp(logits - top).sum(axis=1, keepdims=True, dtype=np.float64)).astype(np.float32)
        scale = (top - low) / np.float32(_STEPS)
        rows[:, :4] = np.concatenate([scale, low - top - sums], axis=1).astype("<f4").view("<u2")
        codes = np.rint((logits - low) / np.where(scale > 0, scale, 1))
        rows[:, 4 : 4 + self._n_vocab] = np.clip(codes, 0, _STEPS)
        self._file.write(rows.tobytes())

    def close(self) -> None:
        """All rows are there: the file gets its name."""
        self._file.close()
        os.replace(self._part, self.path)

    def __enter__(self) -> LogitWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()
            os.unlink(self._part)


@dataclass(frozen=True)
class LogitBase:
    """An open file: chunks of tokens, and rows uint16 [chunks][scored][words], mapped."""

    path: str
    n_ctx: int
    n_vocab: int
    chunks: list[list[int]]
    rows: npt.NDArray[np.uint16]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> LogitBase:
        """Map a file. Raises ArgumentError for another kind of file, or one that is cut short."""
        text = os.fspath(path)
        try:
            with open(text, "rb") as file:
                head = file.read(len(MAGIC) + _HEAD.size)
                size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise ArgumentError(f"{text}: cannot be opened: {error.strerror}") from error
        if len(head) < len(MAGIC) + _HEAD.size or not head.startswith(MAGIC):
            raise ArgumentError(f"{text}: is no file of predictions; --save-logits writes one")
        n_ctx, n_vocab, n = _HEAD.unpack(head[len(MAGIC) :])
        scored = n_ctx - 1 - n_ctx // 2
        words = _row_words(n_vocab) if n_vocab > 0 else 0
        want = len(head) + 4 * n * n_ctx + 2 * n * scored * words
        if not (n_ctx >= 8 and n_vocab > 0 and n > 0) or size != want:
            problem = f"{n} chunks of {n_ctx} tokens, {n_vocab} in the vocabulary, take {want} bytes; it has {size}"
            raise ArgumentError(f"{text}: cut short or damaged: {problem}")
        tokens = np.fromfile(text, "<i4", n * n_ctx, offset=len(head)).reshape(n, n_ctx)
        if tokens.min() < 0 or tokens.max() >= n_vocab:
            raise ArgumentError(f"{text}: damaged: a token is outside the vocabulary of {n_vocab}")
        rows = np.memmap(text, "<u2", "r", len(head) + 4 * n * n_ctx, (n, scored, words))
        return cls(text, n_ctx, n_vocab, tokens.tolist(), rows)


def base_rows(base: LogitBase, chunk: int, row: int, n: int) -> npt.NDArray[np.float32]:
    """Log-probabilities of n scored positions of a chunk from `row` on, float32 [n][n_vocab]."""
    words = np.ascontiguousarray(base.rows[chunk, row : row + n])
    head = words[:, :4].copy().view("<f4")
    return words[:, 4 : 4 + base.n_vocab].astype(np.float32) * head[:, :1] + head[:, 1:]
