"""The engine: runs the steps of one model, on the CPU set or on a GPU, and owns its sequences.

A step takes tokens of one or several sequences. Its logits do not depend on how the tokens were divided into steps, on
the number of threads, or on what other sequences are in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkern.errors import ArgumentError, HybridKernError, SamplingError
from hybridkern.kernels import _cpu
from hybridkern.kernels.cpu.weights import Progress
from hybridkern.kernels.interface import Batch, Recorder
from hybridkern.plan.assignment import CPU, Assignment, checked
from hybridkern.plan.division import divide, whole

from .arguments import MAX_BATCH, count
from .assembly import AllPages, GraphSource, make_parts, programs_of
from .kv_cache import KVCache, max_pages
from .parts import Factory, Part, Sizes
from .stepper import RING, Logits, Outputs, Stepper, token_array, wanted_rows
from .threads import MAX_THREADS, default_threads, usable_cores
from .turn import Turn

DEFAULT_UBATCH, GPU_UBATCH = 512, 2048  # a GPU wants more columns for its products
# Of one step, at most: steps with more outputs are divided. On the CPU they are touched when used, on a GPU allocated.
LOGITS_BYTES, GPU_LOGITS_BYTES = 256 << 20, 64 << 20
GPU_SPARE_PAGES = 16  # beyond one full context, for further sequences and forks
_NO_TOKEN = "the logits behind position {} hold NaN, or are all -inf: no token can be chosen"
Cancelled = _cpu.Cancelled


class Engine:
    """A model ready to run.

    n_ctx: most tokens of a sequence. n_batch: most tokens of one call's step, n_ubatch: of one replay (default 512, on
    a GPU 2048; at most n_batch). kv_type: f16, q8_0, q4_0, f32. threads: for single tokens, threads_batch: for more
    (default: as threads). n_seq: sequences at a time; n_kv_pages: pages of 128 tokens that they share (default: four
    full contexts, on a GPU one and some pages). file: kept open, for weights that stay mapped. device: the number of
    the GPU that everything lies on, None for the CPU; assignment: where each thing lies instead, and the tokens of a
    step; factories: what makes the parts of devices, by name. cpu: name of the CPU's kernel set. progress(done,
    total): bytes packed or uploaded. repack: False multiplies the file's rows on the CPU as they lie. Calls queue.
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
        device: int | None = None,
        cpu: str | None = None,
        progress: Progress | None = None,
        repack: bool = True,
        assignment: Assignment | None = None,
        factories: Mapping[str, Factory] | None = None,
    ) -> None:
        self._closed = True  # until everything is there
        self.n_ctx = count("n_ctx", n_ctx, 1, 1 << 30)
        self.n_batch = count("n_batch", n_batch, 1, MAX_BATCH)
        one = CPU if device is None else f"cuda{device}"
        head, caches = (one, {one}) if assignment is None else (assignment.head, set(assignment.kv))
        usual = DEFAULT_UBATCH if one == CPU else min(GPU_UBATCH, max(DEFAULT_UBATCH, self.n_ctx))
        usual = usual if assignment is None else assignment.n_ubatch
        self.n_ubatch = min(usual if n_ubatch is None else count("n_ubatch", n_ubatch, 1, MAX_BATCH), self.n_batch)
        self.threads = default_threads() if threads is None else count("threads", threads, 1, MAX_THREADS)
        batch = self.threads if threads_batch is None else threads_batch
        self.threads_batch = count("threads_batch", batch, 1, MAX_THREADS)
        count("n_seq", n_seq, 1, 1 << 16)
        pages = max_pages(self.n_ctx)
        n_pages = pages * min(n_seq, 4) + n_seq if caches == {CPU} else pages + GPU_SPARE_PAGES
        n_pages = n_pages if n_kv_pages is None else count("n_kv_pages", n_kv_pages, 1, 1 << 30)
        _cpu.set_cores(usable_cores())

        recorder = Recorder()
        logits = graph_source.record(recorder)
        self.n_vocab = logits.width
        most = LOGITS_BYTES if head == CPU else GPU_LOGITS_BYTES
        self.max_outputs = max(1, min(self.n_ubatch, most // (4 * self.n_vocab)))
        self._file = file
        sizes = Sizes(self.n_ubatch, self.max_outputs, n_pages, n_seq, pages, kv_type, self.n_vocab)
        streams = () if assignment is None else checked(assignment).streamed.values()
        division = whole(recorder.ops, one) if assignment is None else divide(recorder.ops, logits, assignment)
        self.parts: dict[str, Part] = make_parts(
            division, logits, graph_source.kv_specs, sizes, factories or {}, progress=progress,
            others=streams, threads=(self.threads, self.threads_batch), cpu=cpu, repack=repack, source=file,
        )  # fmt: skip
        try:
            self._cache = KVCache(AllPages(list(self.parts.values())), n_ctx=self.n_ctx, n_seq=n_seq, n_pages=n_pages)
            model = division, recorder.ops, logits, assignment, self.parts, sizes
            self._programs = programs_of(*model, self._cache.table.ctypes.data)
            programs, self._made = [(n, made.program) for n, made in self._programs], self._programs[0][1]
            ring, ahead = [self._made.slot() for _ in range(RING)], self._made.ahead()
            self._stepper = Stepper(
                programs, self._cache, ring, ahead, n_vocab=self.n_vocab, n_ubatch=self.n_ubatch,
                max_outputs=self.max_outputs, threads=self.threads, threads_batch=self.threads_batch,
                refills=[part.refill for part in self.parts.values()],
            )  # fmt: skip
        except BaseException:
            for part in self.parts.values():
                part.close()
            raise
        self._turn = _Turn(self)
        self._closed = False

    # sequences

    def new_sequence(self, given: set[int] | None = None) -> int:
        """An empty sequence; its number is added to `given` first, so that Ctrl-C loses none. Raises ContextError when
        n_seq are in use."""
        with self._turn:
            return self._cache.new(given)

    def fork(self, sequence: int, given: set[int] | None = None) -> int:
        """A second sequence with the same past; they share memory until one writes. `given`: see `new_sequence`."""
        with self._turn:
            return self._cache.fork(sequence, given)

    def truncate(self, sequence: int, position: int) -> None:
        """Forget everything from `position` on."""
        with self._turn:
            self._cache.truncate(sequence, position)

    def free(self, sequence: int) -> None:
        """End a sequence."""
        with self._turn:
            self._cache.free(sequence)

    def holds(self, sequence: int) -> bool:
        """Whether there is such a sequence."""
        with self._turn:
            return self._cache.holds(sequence)

    def length(self, sequence: int) -> int:
        """Tokens that the sequence holds."""
        with self._turn:
            return self._cache.length(sequence)

    # computing

    def step(self, batch: Batch) -> Logits:
        """One step of at most n_ubatch tokens: float32 [outputs][n_vocab], a view that the fourth step after this one
        overwrites. A sequence's tokens must be consecutive and continue it. On an error no sequence has changed."""
        with self._turn:
            return self._stepper.step(batch)

    def evaluate(
        self,
        sequence: int,
        tokens: Sequence[int] | npt.NDArray[np.integer],
        outputs: Outputs = "last",
        *,
        rows: Sequence[int] | None = None,
        variant: int = 0,
    ) -> Logits:
        """Append tokens to a sequence; logits at `outputs` of them: float32 [outputs][n_vocab].

        outputs: "last", "all", "none", or ascending rows (`rows` is another name for these). A single row is a view
        that the fourth step after this one overwrites. variant: which rotary table. On an error, a cancel or Ctrl-C
        the sequence is as before.
        """
        ids = token_array(tokens, self.n_vocab)
        wanted = wanted_rows(outputs if rows is None else rows, len(ids))
        with self._turn:
            made = self._stepper.evaluate(sequence, ids, wanted, variant)
        assert isinstance(made, np.ndarray)
        return made

    def evaluate_many(self, work: Sequence[tuple[int, Sequence[int]]]) -> Logits:
        """Append tokens to several sequences in common steps; logits behind the last token of each: float32
        [len(work)][n_vocab]. On an error every sequence is as before."""
        pairs = [(s, token_array(tokens, self.n_vocab)) for s, tokens in work]
        if len({s for s, _ in pairs}) != len(pairs):
            raise ArgumentError("a sequence is named twice")
        if any(len(ids) == 0 for _, ids in pairs):
            raise ArgumentError("a sequence without tokens has no logits")
        with self._turn:
            return self._stepper.evaluate_many(pairs)

    @property
    def n_top(self) -> int:
        """How many of the likeliest next tokens `top` gives; 0 where there is no such thing."""
        return 0 if self._closed or self._made.top is None else len(self._made.top.ids)

    def top(self, sequence: int, token: int, *, variant: int = 0) -> tuple[Logits, Logits, float]:
        """Append a token; ids and logits of the likeliest next ones, best first, and the log of the sum of the
        exponentials of all logits. The arrays are overwritten by the next call. Errors: see `greedy`."""
        with self._turn:
            found = self._made.top
            if found is None:
                raise HybridKernError("no likeliest tokens here: ask for logits")
            self._stepper.decode_top(sequence, token, variant)
            if found.ids[0] < 0:
                raise SamplingError(_NO_TOKEN.format(self._cache.length(sequence) - 1))
            return found.ids, found.values, float(found.total[1])

    def greedy(self, sequence: int, tokens: int | Sequence[int], *, variant: int = 0) -> tuple[int, float]:
        """Append a token or several; the likeliest next one (the lowest id among equals) and its log-probability.
        Raises SamplingError where the logits hold NaN or are all -inf; the tokens then stay appended."""
        if isinstance(tokens, int) or len(tokens) == 1:
            token = tokens if isinstance(tokens, int) else int(tokens[0])
            if not 0 <= token < self.n_vocab:
                raise ArgumentError(f"token {token} is outside the vocabulary of {self.n_vocab}")
            with self._turn:
                best, logprob, bad = self._stepper.decode(sequence, token, variant)
        else:
            best, logprob, bad = self._greedy_batch(sequence, token_array(tokens, self.n_vocab), variant)
        if bad:
            raise SamplingError(_NO_TOKEN.format(self.length(sequence) - 1))
        return best, logprob

    def _greedy_batch(self, sequence: int, ids: npt.NDArray[np.int32], variant: int) -> tuple[int, float, bool]:
        if len(ids) == 0:
            raise ArgumentError("no tokens: there is nothing to continue")
        with self._turn:
            slot = self._stepper.evaluate(sequence, ids, wanted_rows("last", len(ids)), variant, greedy=True)
            assert not isinstance(slot, np.ndarray)
            return int(slot.best[0]), float(slot.best_value[0]) - float(slot.best_lse[0]), bool(slot.bad[0])

    def arm(self, decoding: _cpu.Decoding, sequence: int, variant: int, before: int) -> None:
        """Let a greedy decoding go on by itself behind the tokens of `sequence`, until anything else is called here, a
        page is full or it stands at position `before`."""
        with self._turn as lock:
            self._stepper.arm(decoding, lock, sequence, variant, before)

    def use_threads(self, threads: int, threads_batch: int) -> None:
        """From the next step on, for single tokens and for more; `describe` tells those that it began with."""
        with self._turn:
            self.threads, self.threads_batch = self._stepper.use_threads(threads, threads_batch)

    def cancel(self) -> None:
        """End the call that is running, from another thread: it raises `Cancelled`."""
        if not self._closed:
            self._stepper.cancel()

    # ownership

    @property
    def part(self) -> Part:
        """That makes the logits."""
        return self.parts[self._made.division.head]

    def describe(self) -> str:
        """What runs where: kernel set, threads, memory."""
        if self._closed:
            return "closed engine"
        if len(self.parts) == 1 and self.part.gpu is None:
            asked = ["everything lies on the CPU: a GPU was not asked for (-ngl all, n_gpu_layers='all')"]
        else:
            asked = [line for n, made in self._programs for line in made.describe(n)]
        lines = [line for part in self.parts.values() for line in part.describe()]
        return "\n".join((*lines[:1], *asked, *lines[1:], f"context: {self.n_ctx} tokens per sequence"))

    def close(self) -> None:
        """Give the memory back, as far as no views of logits remain. A second call does nothing."""
        if self._closed:
            return
        with self._turn:
            self._closed = True  # and nothing is armed: the turn saw to it
            del self._stepper, self._programs, self._made, self._cache
            for part in self.parts.values():
                part.close()
            self.parts = {}
            self._file = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Turn(Turn):
    """One caller at a time."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine

    def begin(self) -> None:
        super().begin()
        if self._engine._closed:
            raise HybridKernError("the engine is closed")
        self._engine._stepper.resume()
