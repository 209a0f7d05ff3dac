"""Divides what is asked of a model into steps, and keeps cache and results in agreement with them.

Callers hold the engine's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from hybridkern.errors import ArgumentError, ContextError
from hybridkern.kernels import _cpu
from hybridkern.kernels.interface import Batch

from .kv_cache import PAGE, KVCache
from .slots import Slot

Ids = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]
Outputs = Literal["last", "all", "none"] | Sequence[int]
RING = 4  # slots: a view of logits stays valid for three more steps


def wanted_rows(outputs: Outputs, n: int) -> Ids:
    """Rows of n tokens whose logits are asked for, ascending. Raises ArgumentError for rows that do not exist."""
    if isinstance(outputs, str):
        if outputs not in ("last", "all", "none"):
            raise ArgumentError(f"outputs {outputs!r} is not last, all, none or a list of rows")
        return np.arange({"last": max(0, n - 1), "all": 0, "none": n}[outputs], n, dtype=np.int32)
    rows = np.asarray(outputs, np.int64).reshape(-1)
    if len(rows) and (rows[0] < 0 or rows[-1] >= n or np.any(np.diff(rows) <= 0)):
        raise ArgumentError(f"outputs must be ascending rows from 0 to {n - 1}")
    return rows.astype(np.int32)


def token_array(tokens: Sequence[int] | npt.NDArray[np.integer], n_vocab: int) -> Ids:
    """Token ids as int32 [n]. Raises ArgumentError for what is not an id of the vocabulary."""
    ids = np.asarray(tokens)
    if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
        raise ArgumentError("tokens must be a list of integers")
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= n_vocab):
        raise ArgumentError(f"a token is outside the vocabulary of {n_vocab}")
    return ids.astype(np.int32)


class Stepper:
    """Runs programs over a ring of slots. programs: (tokens of a step from which on it is used, program), ascending;
    the first is for single tokens. refills: bring what the first reads of that which the others leave. ahead: two more
    slots for greedy steps that a GPU is given ahead, or none. threads: for single tokens; threads_batch: for more."""

    def __init__(
        self,
        programs: Sequence[tuple[int, _cpu.Program]],
        cache: KVCache,
        ring: Sequence[Slot],
        ahead: Sequence[Slot],
        *,
        n_vocab: int,
        n_ubatch: int,
        max_outputs: int,
        threads: int,
        threads_batch: int,
        refills: Sequence[Callable[[], None]] = (),
    ) -> None:
        self.programs, self.cache = list(programs), cache
        self._refills, self._is_torn, self._mends = refills, True, False
        self.n_vocab, self.n_ubatch, self.max_outputs = n_vocab, n_ubatch, max_outputs
        self.use_threads(threads, threads_batch)
        self._ring, self._ahead = ring, ahead
        self._next = 0

    def _slot(self) -> Slot:
        slot = self._ring[self._next]
        self._next = (self._next + 1) % len(self._ring)
        return slot

    def use_threads(self, threads: int, threads_batch: int) -> tuple[int, int]:
        """From the next step on; what was given."""
        self.threads, self.threads_batch = threads, threads_batch
        return threads, threads_batch

    def cancel(self) -> None:
        """End the step that is running."""
        for _, program in self.programs:
            program.cancel()

    def resume(self) -> None:
        """Steps may run again."""
        for _, program in self.programs:
            program.resume()

    def _first(self) -> _cpu.Program:
        """For steps of few tokens. What a step of many left unfinished is mended before."""
        if self._is_torn:
            self._mends = True  # until it has ended: Ctrl-C leaves it to the device's thread
            for refill in self._refills:
                refill()
            self._mends = self._is_torn = False
        return self.programs[0][1]

    def _program(self, n: int) -> _cpu.Program:
        """For steps of n tokens."""
        return [program for least, program in self.programs if least <= n][-1]

    def _replay(self, slot: Slot, n: int, m: int, greedy: bool) -> None:
        """One step of n tokens."""
        program, threads = self._program(n), self.threads if n == 1 else self.threads_batch
        if program is self.programs[0][1]:
            self._first().run(slot.native, n, m, threads, greedy)
            return
        if self._mends:  # one that was left may still be writing: the next queues behind it
            self._first()
        self._is_torn = True  # unless it comes to its end
        program.run(slot.native, n, m, threads, greedy)
        self._is_torn = False

    def _run(self, slot: Slot, n: int, m: int, runs: Sequence[tuple[int, int]], greedy: bool = False) -> None:
        """One replay; runs: (sequence, tokens of it). On an error the cache is as before."""
        done = 0
        try:
            for sequence, count in runs:
                self.cache.reserve(sequence, count)
                done += 1
            self._replay(slot, n, m, greedy)
        except BaseException:
            for sequence, _ in runs[:done]:
                self.cache.give_back(sequence)
            raise
        for sequence, count in runs:
            self.cache.advance(sequence, count)

    def decode(self, sequence: int, token: int, variant: int) -> tuple[int, float, bool]:
        """One token of one sequence: (best next token, its log-probability, whether the logits are unusable)."""
        cache = self.cache
        position = cache.reserve(sequence, 1)
        try:
            result = self._first().decode(self._slot().native, token, position, sequence, variant, self.threads)
            cache.advance(sequence, 1)
            return result
        except BaseException:
            cache.give_back(sequence)
            raise

    def decode_top(self, sequence: int, token: int, variant: int) -> None:
        """One token of one sequence on a GPU, which leaves the likeliest next ones in host memory."""
        cache = self.cache
        position = cache.reserve(sequence, 1)
        try:
            self._first().decode_top(self._slot().native, token, position, sequence, variant)
            cache.advance(sequence, 1)
        except BaseException:
            cache.give_back(sequence)
            raise

    def arm(self, decoding: _cpu.Decoding, lock: _cpu.Lock, sequence: int, variant: int, before: int) -> None:
        """Let `decoding` repeat the step of one token in the page that the sequence has begun to fill."""
        length = self.cache.length(sequence)
        slot, spare = self._ahead or (self._slot(), None)
        decoding.arm(
            self._first(),
            slot.native,
            lock,
            self.cache.lengths,
            sequence=sequence,
            variant=variant,
            limit=min(before, self.cache.n_ctx, -(-length // PAGE) * PAGE),
            threads=self.threads,
            spare=None if spare is None else spare.native,
        )

    def step(self, batch: Batch) -> Logits:
        """One step as it is described: float32 [outputs][n_vocab], a view of the slot."""
        tokens, m = token_array(batch.tokens, self.n_vocab), len(batch.outputs)
        n = len(tokens)
        if not 1 <= n <= self.n_ubatch or m > self.max_outputs:
            raise ArgumentError(
                f"a step of {n} tokens and {m} outputs; it can have 1 to {self.n_ubatch} and {self.max_outputs}"
            )
        runs = self._runs(batch, n)
        outputs = wanted_rows(batch.outputs, n)
        slot = self._slot()
        slot.tokens[:n], slot.positions[:n], slot.sequences[:n] = tokens, batch.positions, batch.sequences
        slot.variants[:n] = 0 if batch.variants is None else batch.variants
        slot.outputs[:m] = outputs
        self._run(slot, n, m, runs)
        return slot.rows(m)

    def _runs(self, batch: Batch, n: int) -> list[tuple[int, int]]:
        sequences, positions = np.asarray(batch.sequences), np.asarray(batch.positions)
        if len(sequences) != n or len(positions) != n:
            raise ArgumentError("tokens, positions and sequences of a step differ in length")
        cuts = np.flatnonzero(np.diff(sequences)) + 1
        runs = [(int(part[0]), len(part)) for part in np.split(sequences, cuts)]
        if len({s for s, _ in runs}) != len(runs):
            raise ArgumentError("the tokens of a sequence are not consecutive in the step")
        start = 0
        for s, count in runs:
            length = self.cache.length(s)
            if not np.array_equal(positions[start : start + count], np.arange(length, length + count)):
                raise ArgumentError(f"sequence {s} holds {length} tokens: the step's positions do not continue it")
            start += count
        return runs

    def evaluate(self, sequence: int, ids: Ids, wanted: Ids, variant: int, greedy: bool = False) -> Slot | Logits:
        """Append tokens. Logits at the rows `wanted`, float32 [wanted][n_vocab] (one row: a view); or, greedy, the last
        slot, whose first result is that of the last row. On an error the sequence is as before."""
        start = self.cache.length(sequence)
        if start + len(ids) > self.cache.n_ctx:
            raise ContextError(
                f"{len(ids)} tokens behind the {start} that the sequence holds do not fit the context of "
                f"{self.cache.n_ctx} (n_ctx)"
            )
        try:
            return self._evaluate(sequence, start, ids, wanted, variant, greedy)
        except BaseException:
            self.cache.truncate(sequence, start)
            raise

    def _evaluate(self, sequence: int, start: int, ids: Ids, wanted: Ids, variant: int, greedy: bool) -> Slot | Logits:
        result = np.empty((len(wanted), self.n_vocab), np.float32) if len(wanted) > 1 else None
        at = out = 0
        slot = self._ring[self._next]
        while at < len(ids):
            n = min(self.n_ubatch, len(ids) - at)
            m = int(np.searchsorted(wanted, at + n)) - out
            if m > self.max_outputs:  # fewer tokens, so that their logits fit the slot
                m = self.max_outputs
                n = int(wanted[out + m]) - at
            slot = self._slot()
            slot.tokens[:n] = ids[at : at + n]
            slot.positions[:n] = np.arange(start + at, start + at + n)
            slot.sequences[:n], slot.variants[:n] = sequence, variant
            slot.outputs[:m] = wanted[out : out + m] - at
            self._run(slot, n, m, [(sequence, n)], greedy)
            if result is not None:
                result[out : out + m] = slot.rows(m)
            at, out = at + n, out + m
        if greedy:
            return slot
        return slot.rows(len(wanted)) if result is None else result

    def evaluate_many(self, pairs: Sequence[tuple[int, Ids]]) -> Logits:
        """Append tokens to several sequences in common steps; the logits behind the last token of each, float32
        [pairs][n_vocab]. On an error every sequence is as before."""
        result = np.empty((len(pairs), self.n_vocab), np.float32)
        starts = [self.cache.length(s) for s, _ in pairs]
        try:
            done = [0] * len(pairs)
            while any(d < len(ids) for d, (_, ids) in zip(done, pairs, strict=True)):
                self._common_step(pairs, done, result)
        except BaseException:
            for (s, _), start in zip(pairs, starts, strict=True):
                self.cache.truncate(s, start)
            raise
        return result

    def _common_step(self, pairs: Sequence[tuple[int, Ids]], done: list[int], result: Logits) -> None:
        slot, n, m = self._slot(), 0, 0
        runs: list[tuple[int, int]] = []
        ends: list[int] = []
        for i, (s, ids) in enumerate(pairs):
            take = min(len(ids) - done[i], self.n_ubatch - n)
            if take <= 0 or m == self.max_outputs:
                continue
            length = self.cache.length(s)
            slot.tokens[n : n + take] = ids[done[i] : done[i] + take]
            slot.positions[n : n + take] = np.arange(length, length + take)
            slot.sequences[n : n + take], slot.variants[n : n + take] = s, 0
            runs.append((s, take))
            n, done[i] = n + take, done[i] + take
            if done[i] == len(ids):
                slot.outputs[m] = n - 1
                ends.append(i)
                m += 1
        self._run(slot, n, m, runs)
        result[ends] = slot.rows(m)
