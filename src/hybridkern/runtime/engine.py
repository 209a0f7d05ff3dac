"""The engine: runs the steps of one model on the CPU set and owns its sequences.

A step takes tokens of one or several sequences. Its logits do not depend on how the tokens were divided into steps, on
the number of threads, or on what other sequences are in it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from hybridkern.errors import ArgumentError, ContextError, HybridKernError, SamplingError
from hybridkern.kernels import _cpu
from hybridkern.kernels.cpu import CpuSet
from hybridkern.kernels.cpu.weights import Progress
from hybridkern.kernels.interface import Batch, Buffer, KVSpec, Recorder

from .kv_cache import PAGE, KVCache
from .slots import StepSlot
from .threads import MAX_THREADS, default_threads, usable_cores

Logits = npt.NDArray[np.float32]
Outputs = Literal["last", "all", "none"] | Sequence[int]
RING = 4
DEFAULT_UBATCH = 512
LOGITS_BYTES = 256 << 20  # of one slot, at most: steps with more outputs are divided
Cancelled = _cpu.Cancelled


class GraphSource(Protocol):
    """What the engine needs of a model: its caches, and the recording of one step, which returns the logits buffer."""

    @property
    def kv_specs(self) -> Sequence[KVSpec]: ...

    def record(self, recorder: Recorder) -> Buffer: ...


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise ArgumentError(f"{name} = {value!r}: an integer from {low} to {high} is needed")
    return int(value)


class Engine:
    """A model ready to run.

    n_ctx: most tokens of a sequence. n_batch: most tokens of one call's step, n_ubatch: of one replay (default 512, at
    most n_batch). kv_type: f16, q8_0, q4_0, f32. threads: for single tokens, threads_batch: for more (default: as
    threads). n_seq: sequences at a time; n_kv_pages: pages of 128 tokens that they share (default: four full contexts).
    file: kept open as long as the engine, for weights that stay mapped. cpu: name of the kernel set. progress(done,
    total): bytes of weights packed. Calls from several threads queue.
    """

    def __init__(
        self,
        graph_source: GraphSource,
        file: Any = None,
        *,
        n_ctx: int,
        n_batch: int = 2048,
        n_ubatch: int | None = None,
        kv_type: str = "f16",
        threads: int | None = None,
        threads_batch: int | None = None,
        n_seq: int = 64,
        n_kv_pages: int | None = None,
        cpu: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._closed = True  # until everything is there
        self.n_ctx = _whole("n_ctx", n_ctx, 1, 1 << 30)
        self.n_batch = _whole("n_batch", n_batch, 1, 1 << 24)
        ubatch = min(DEFAULT_UBATCH, self.n_batch) if n_ubatch is None else _whole("n_ubatch", n_ubatch, 1, 1 << 24)
        self.n_ubatch = min(ubatch, self.n_batch)
        self.threads = default_threads() if threads is None else _whole("threads", threads, 1, MAX_THREADS)
        batch = self.threads if threads_batch is None else threads_batch
        self.threads_batch = _whole("threads_batch", batch, 1, MAX_THREADS)
        _whole("n_seq", n_seq, 1, 1 << 16)
        pages = -(-self.n_ctx // PAGE)
        n_pages = pages * min(n_seq, 4) + n_seq if n_kv_pages is None else _whole("n_kv_pages", n_kv_pages, 1, 1 << 30)
        _cpu.set_cores(usable_cores())

        recorder = Recorder()
        logits = graph_source.record(recorder)
        self.n_vocab = logits.width
        self.max_outputs = max(1, min(self.n_ubatch, LOGITS_BYTES // (4 * self.n_vocab)))
        self._file = file
        self._cache = KVCache(graph_source.kv_specs, kv_type=kv_type, n_ctx=self.n_ctx, n_seq=n_seq, n_pages=n_pages)
        self._set = CpuSet(cpu)
        self._tape = self._set.lower(
            recorder.ops,
            logits=logits,
            cache=self._cache.layout,
            max_rows=self.n_ubatch,
            max_outputs=self.max_outputs,
            threads=self.threads_batch,
            progress=progress,
        )
        self._program = _cpu.Program([self._tape], self._cache.table.ctypes.data, n_seq)
        shape = (self.n_ubatch, self.max_outputs, n_seq, self._cache.max_pages, self.n_vocab)
        self._ring = [StepSlot(*shape) for _ in range(RING)]
        self._next = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False

    # sequences

    def new_sequence(self) -> int:
        """An empty sequence. Raises ContextError when n_seq are in use."""
        with self._turn():
            return self._cache.new()

    def fork(self, sequence: int) -> int:
        """A second sequence with the same past; they share memory until one writes."""
        with self._turn():
            return self._cache.fork(sequence)

    def truncate(self, sequence: int, position: int) -> None:
        """Forget everything from `position` on."""
        with self._turn():
            self._cache.truncate(sequence, position)

    def free(self, sequence: int) -> None:
        """End a sequence."""
        with self._turn():
            self._cache.free(sequence)

    def length(self, sequence: int) -> int:
        """Tokens that the sequence holds."""
        with self._turn():
            return self._cache.length(sequence)

    # computing

    def step(self, batch: Batch) -> Logits:
        """One step of at most n_ubatch tokens: float32 [outputs][n_vocab], a view that the fourth step after this one
        overwrites. A sequence's tokens must be consecutive and continue it. On an error no sequence has changed."""
        tokens = np.asarray(batch.tokens, np.int32)
        n, m = len(tokens), len(batch.outputs)
        if not 1 <= n <= self.n_ubatch or m > self.max_outputs:
            raise ArgumentError(
                f"a step of {n} tokens and {m} outputs; it can have 1 to {self.n_ubatch} and {self.max_outputs}"
            )
        with self._turn():
            runs = self._runs(batch, n)
            slot = self._slot()
            slot.tokens[:n], slot.positions[:n], slot.sequences[:n] = tokens, batch.positions, batch.sequences
            slot.variants[:n] = 0 if batch.variants is None else batch.variants
            slot.outputs[:m] = batch.outputs
            self._run(slot, n, m, runs)
            return slot.logits[:m]

    def evaluate(
        self,
        sequence: int,
        tokens: Sequence[int] | npt.NDArray[np.integer],
        outputs: Outputs = "last",
        *,
        rows: Sequence[int] | None = None,
        variant: int = 0,
    ) -> Logits:
        """Append tokens to a sequence; logits at `outputs` of them (or at `rows`: the same as a list, ascending):
        float32 [outputs][n_vocab]. One row may be a view that the fourth step after this one overwrites. variant: which
        rotary table. On an error, a cancel or Ctrl-C the sequence is as before."""
        ids = self._ids(tokens)
        wanted = _wanted(outputs if rows is None else rows, len(ids))
        with self._turn():
            start = self._cache.length(sequence)
            try:
                return self._evaluate(sequence, ids, wanted, variant)
            except BaseException:
                self._cache.truncate(sequence, start)
                raise

    def evaluate_many(self, work: Sequence[tuple[int, Sequence[int]]]) -> Logits:
        """Append tokens to several sequences in common steps; logits behind the last token of each: float32
        [len(work)][n_vocab]. On an error every sequence is as before."""
        pairs = [(s, self._ids(tokens)) for s, tokens in work]
        if len({s for s, _ in pairs}) != len(pairs):
            raise ArgumentError("a sequence is named twice")
        if any(len(ids) == 0 for _, ids in pairs):
            raise ArgumentError("a sequence without tokens has no logits")
        result = np.empty((len(pairs), self.n_vocab), np.float32)
        with self._turn():
            starts = [(s, self._cache.length(s)) for s, _ in pairs]
            try:
                self._evaluate_many(pairs, result)
            except BaseException:
                for s, start in starts:
                    self._cache.truncate(s, min(start, self._cache.length(s)))
                raise
        return result

    def greedy(self, sequence: int, tokens: int | Sequence[int], *, variant: int = 0) -> tuple[int, float]:
        """Append a token or several; the likeliest next one (the lowest id among equals) and its log-probability.

        Raises SamplingError where the logits hold NaN or are all -inf.
        """
        if not isinstance(tokens, int):
            if len(tokens) != 1:
                return self._greedy_batch(sequence, self._ids(tokens), variant)
            tokens = int(tokens[0])
        if not 0 <= tokens < self.n_vocab:
            raise ArgumentError(f"token {tokens} is outside the vocabulary of {self.n_vocab}")
        with self._turn():
            cache = self._cache
            position = cache.reserve(sequence, 1)
            slot = self._slot()
            try:
                best, logprob, bad = self._program.decode(
                    slot.native, tokens, position, sequence, variant, self.threads
                )
            except BaseException:
                cache.give_back(sequence)
                raise
            cache.advance(sequence, 1)
        if bad:
            raise SamplingError(f"the logits behind position {position} hold NaN, or are all -inf: no token can be chosen")
        return best, logprob

    def cancel(self) -> None:
        """End the call that is running, from another thread: it raises `Cancelled`."""
        if not self._closed:
            self._program.cancel()

    # ownership

    def describe(self) -> str:
        """What runs where: kernel set, threads, memory."""
        if self._closed:
            return "closed engine"
        c = self._cache
        return "\n".join(
            (
                self._set.describe(),
                f"threads: {self.threads} for single tokens, {self.threads_batch} for batches",
                f"weights: {self._set.weight_bytes / 2**20:.1f} MiB packed",
                f"buffers: {self._set.buffer_bytes / 2**20:.1f} MiB for steps of {self.n_ubatch} tokens",
                f"KV cache: {c.kv_type}, {c.n_pages} pages of {PAGE} tokens and {c.page_bytes / 2**20:.2f} MiB each, touched "
                f"when used; {self.n_ctx} tokens per sequence",
                f"tape: {self._tape.n_ops} operations, {self._tape.n_syncs} barriers",
            )
        )

    def close(self) -> None:
        """Give the memory back, as far as no logits views remain. A second call does nothing."""
        if self._closed:
            return
        with self._lock:
            self._closed = True
            del self._program, self._tape, self._ring, self._cache, self._set
            self._file = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # inside a turn

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if os.getpid() != self._pid:
            raise HybridKernError("this model was loaded before the process forked: load it again in the child")
        with self._lock:
            if self._closed:
                raise HybridKernError("the engine is closed")
            self._program.resume()
            yield

    def _ids(self, tokens: Sequence[int] | npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        ids = np.asarray(tokens)
        if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
            raise ArgumentError("tokens must be a list of integers")
        if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < self.n_vocab):
            raise ArgumentError(f"a token is outside the vocabulary of {self.n_vocab}")
        return ids.astype(np.int32)

    def _slot(self) -> StepSlot:
        slot = self._ring[self._next]
        self._next = (self._next + 1) % RING
        return slot

    def _run(self, slot: StepSlot, n: int, m: int, runs: list[tuple[int, int]], greedy: bool = False) -> None:
        """One replay; runs: (sequence, tokens of it)."""
        done = 0
        try:
            for sequence, count in runs:
                self._cache.reserve(sequence, count)
                done += 1
            self._program.run(slot.native, n, m, self.threads if n == 1 else self.threads_batch, greedy)
        except BaseException:
            for sequence, _ in runs[:done]:
                self._cache.give_back(sequence)
            raise
        for sequence, count in runs:
            self._cache.advance(sequence, count)

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
            length = self._cache.length(s)
            if not np.array_equal(positions[start : start + count], np.arange(length, length + count)):
                raise ArgumentError(f"sequence {s} holds {length} tokens: the step's positions do not continue it")
            start += count
        return runs

    def _evaluate(
        self, sequence: int, ids: npt.NDArray[np.int32], wanted: npt.NDArray[np.int32], variant: int, greedy: bool = False
    ) -> Any:
        start = self._cache.length(sequence)
        if start + len(ids) > self.n_ctx:
            raise ContextError(
                f"{len(ids)} tokens behind the {start} that the sequence holds do not fit the context of {self.n_ctx} (n_ctx)"
            )
        result = np.empty((len(wanted), self.n_vocab), np.float32) if len(wanted) > 1 else None
        at = out = 0
        slot, m = self._ring[0], 0
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
                result[out : out + m] = slot.logits[:m]
            at, out = at + n, out + m
        if greedy:
            return int(slot.best[0]), float(slot.best_value[0]) - float(slot.best_lse[0]), bool(slot.bad[0])
        return slot.logits[: len(wanted)] if result is None else result

    def _greedy_batch(self, sequence: int, ids: npt.NDArray[np.int32], variant: int) -> tuple[int, float]:
        if len(ids) == 0:
            raise ArgumentError("no tokens: there is nothing to continue")
        with self._turn():
            start = self._cache.length(sequence)
            try:
                best, logprob, bad = self._evaluate(sequence, ids, _wanted("last", len(ids)), variant, True)
            except BaseException:
                self._cache.truncate(sequence, start)
                raise
        if bad:
            raise SamplingError(
                f"the logits behind position {start + len(ids) - 1} hold NaN, or are all -inf: no token can be chosen"
            )
        return best, logprob

    def _evaluate_many(self, pairs: list[tuple[int, npt.NDArray[np.int32]]], result: Logits) -> None:
        done = [0] * len(pairs)
        while any(d < len(ids) for d, (_, ids) in zip(done, pairs, strict=True)):
            slot, n, m = self._slot(), 0, 0
            runs: list[tuple[int, int]] = []
            ends: list[int] = []
            for i, (s, ids) in enumerate(pairs):
                take = min(len(ids) - done[i], self.n_ubatch - n)
                if take <= 0 or m == self.max_outputs:
                    continue
                length = self._cache.length(s)
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
            result[ends] = slot.logits[:m]


def _wanted(outputs: Outputs, n: int) -> npt.NDArray[np.int32]:
    """Rows whose logits are asked for, ascending."""
    if isinstance(outputs, str):
        if outputs not in ("last", "all", "none"):
            raise ArgumentError(f"outputs {outputs!r} is not last, all, none or a list of rows")
        return np.arange({"last": max(0, n - 1), "all": 0, "none": n}[outputs], n, dtype=np.int32)
    rows = np.asarray(outputs, np.int64).reshape(-1)
    if len(rows) and (rows[0] < 0 or rows[-1] >= n or np.any(np.diff(rows) <= 0)):
        raise ArgumentError(f"outputs must be ascending rows from 0 to {n - 1}")
    return rows.astype(np.int32)
