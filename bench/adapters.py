"""The engines that bench/peers.py compares, behind one small interface, and the worker process that runs one of them.

`peers.py` starts one worker per engine and setting (`python adapters.py ENGINE OPTIONS`). A worker loads the model once
and then answers one JSON request a line, so that the engines take turns in one run while the others wait. A request
holds the name of a method and its arguments; the answer holds `result` or `error`. The peer's virtual environment needs
only its own package, which brings NumPy: nothing else is imported here.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

UBATCH = 512
MIN_SECONDS = 0.3  # a timed round repeats short work until this much time has been measured


class Engine(Protocol):
    """What a peer must offer. Times are seconds for the whole of the work."""

    name: str
    version: str

    def tokenize(self, text: str, special: bool = False, bos: bool = False) -> list[int]:
        """Token ids of `text`; `special` parses control tokens in it, `bos` adds what the model asks to be added."""

    def logits(self, ids: Sequence[int], batch: int = UBATCH) -> Iterator[np.ndarray]:
        """Logits of every position, in chunks of (up to `batch`, n_vocab), computed `batch` tokens at a time."""

    def prefill(self, ids: Sequence[int]) -> float:
        """Time a fresh prompt of these tokens, with logits at the last position only."""

    def decode(self, ids: Sequence[int], depth: int) -> float:
        """Time `len(ids)` single-token steps behind a context of `depth` tokens."""


class LlamaCpp:
    """llama.cpp through llama-cpp-python's low-level interface."""

    name = "llama.cpp"

    def __init__(
        self,
        path: str,
        threads: int = 2,
        n_ctx: int = 1024,
        repack: bool = True,
        flash: bool = True,
        kv_f32: bool = False,
    ) -> None:
        import llama_cpp as api

        self.api, self.version = api, api.__version__
        self._silence = api.llama_log_callback(lambda level, text, data: None)  # must outlive the library's use of it
        api.llama_log_set(self._silence, ctypes.c_void_p(0))
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = repack
        self.model = api.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.vocab = api.llama_model_get_vocab(self.model)
        self.n_vocab = api.llama_vocab_n_tokens(self.vocab)
        self.context_options = {"threads": threads, "flash": flash, "kv_f32": kv_f32}
        self.ctx = self._context(n_ctx)
        self.deep_ctx, self.deep_depth = None, -1

    def _context(self, n_ctx: int) -> Any:
        api = self.api
        params = api.llama_context_default_params()
        params.n_ctx = params.n_batch = n_ctx  # one call takes a whole prompt: only its last position needs logits
        params.n_ubatch = UBATCH
        params.n_threads = params.n_threads_batch = self.context_options["threads"]
        flash = self.context_options["flash"]
        params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        if self.context_options["kv_f32"]:
            params.type_k = params.type_v = 0  # GGML_TYPE_F32
        ctx = api.llama_init_from_model(self.model, params)
        if not ctx:
            raise RuntimeError(f"llama.cpp cannot make a context of {n_ctx} tokens")
        return ctx

    def _eval(self, ctx: Any, ids: Sequence[int], start: int, all_rows: bool = False) -> None:
        api, n = self.api, len(ids)
        batch = api.llama_batch_init(n, 0, 1)
        try:
            batch.n_tokens = n
            for i, token in enumerate(ids):
                batch.token[i] = token
                batch.pos[i] = start + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = all_rows or i == n - 1
            if code := api.llama_decode(ctx, batch):
                raise RuntimeError(f"llama_decode returned {code}")
            api.llama_synchronize(ctx)
        finally:
            api.llama_batch_free(batch)

    def _clear(self, ctx: Any) -> None:
        self.api.llama_memory_clear(self.api.llama_get_memory(ctx), True)

    def tokenize(self, text: str, special: bool = False, bos: bool = False) -> list[int]:
        data = text.encode()
        room = len(data) + 8
        out = (self.api.llama_token * room)()
        n = self.api.llama_tokenize(self.vocab, data, len(data), out, room, bos, special)
        if n < 0:
            raise RuntimeError(f"llama_tokenize returned {n}")
        return list(out[:n])

    def logits(self, ids: Sequence[int], batch: int = UBATCH) -> Iterator[np.ndarray]:
        self._clear(self.ctx)
        for start in range(0, len(ids), batch):
            chunk = ids[start : start + batch]
            self._eval(self.ctx, chunk, start, all_rows=True)
            rows = np.ctypeslib.as_array(self.api.llama_get_logits(self.ctx), (len(chunk) * self.n_vocab,))
            yield rows.reshape(len(chunk), self.n_vocab).copy()

    def prefill(self, ids: Sequence[int]) -> float:
        self._clear(self.ctx)
        begin = time.perf_counter()
        self._eval(self.ctx, ids, 0)
        return time.perf_counter() - begin

    def decode(self, ids: Sequence[int], depth: int) -> float:
        ctx = self.ctx if depth == 0 else self._at_depth(ids, depth)
        if depth == 0:
            self._clear(ctx)
        begin = time.perf_counter()
        for i, token in enumerate(ids):
            self._eval(ctx, [token], depth + i)
        return time.perf_counter() - begin

    def _at_depth(self, ids: Sequence[int], depth: int) -> Any:
        """A second context that holds `depth` tokens: filled once, and cut back to that depth afterwards."""
        api = self.api
        if self.deep_depth == depth and api.llama_memory_seq_rm(api.llama_get_memory(self.deep_ctx), 0, depth, -1):
            return self.deep_ctx
        if self.deep_ctx is not None:
            api.llama_free(self.deep_ctx)
        self.deep_ctx, self.deep_depth = self._context(depth + len(ids)), depth
        self._eval(self.deep_ctx, [ids[i % len(ids)] for i in range(depth)], 0)
        return self.deep_ctx


class HybridKern:
    """hybridkern through its public Python interface."""

    name = "hybridkern"

    def __init__(self, path: str, threads: int = 2, n_ctx: int = 1024, **options: Any) -> None:
        import hybridkern

        self.version = hybridkern.__version__
        self.model = hybridkern.load(
            path, threads=threads, threads_batch=threads, n_ctx=n_ctx, n_ubatch=UBATCH, **options
        )
        self.session = self.model.session()  # keeps its tokens, so that a deep context is filled once

    def tokenize(self, text: str, special: bool = False, bos: bool = False) -> list[int]:
        return self.model.tokenize(text, special=special, bos=bos)

    def logits(self, ids: Sequence[int], batch: int = UBATCH) -> Iterator[np.ndarray]:
        ids = list(ids)
        for start in range(0, len(ids), batch):
            stop = min(start + batch, len(ids))
            yield self.model.logits(ids[:stop], rows=range(start, stop))

    def prefill(self, ids: Sequence[int]) -> float:
        begin = time.perf_counter()
        self.model.logits(list(ids), rows=[-1])
        return time.perf_counter() - begin

    def decode(self, ids: Sequence[int], depth: int) -> float:
        """Greedy generation, sampling and detokenising included; the piece after the prompt starts the clock."""
        prompt = [ids[i % len(ids)] for i in range(depth or 1)]
        stream = self.session.generate(prompt, max_tokens=len(ids) + 1, temperature=0.0, ignore_eos=True)
        next(stream)
        begin = time.perf_counter()
        steps = sum(1 for _ in stream)
        seconds = time.perf_counter() - begin
        if steps != len(ids):
            raise RuntimeError(f"hybridkern generated {steps} tokens, {len(ids)} were asked for")
        return seconds


ENGINES: dict[str, Callable[..., Engine]] = {"llama.cpp": LlamaCpp, "hybridkern": HybridKern}


def log_softmax_at(logits: np.ndarray, ids: Sequence[int]) -> np.ndarray:
    """Log-probability, in float64, of one id per row of `logits`."""
    out = np.empty(len(ids))
    for row, token in enumerate(ids):  # row by row: a whole chunk in float64 would take gigabytes
        x = logits[row].astype(np.float64)
        top = x.max()
        out[row] = x[token] - top - np.log(np.exp(x - top).sum())
    return out


def perplexity(engine: Engine, ids: Sequence[int], batch: int = UBATCH) -> float:
    """exp of the mean negative log-likelihood of ids[1:], each given all the ids before it."""
    total, start = 0.0, 1
    for rows in engine.logits(list(ids)[:-1], batch):
        total -= log_softmax_at(rows, ids[start : start + len(rows)]).sum()
        start += len(rows)
    return float(np.exp(total / (len(ids) - 1)))


def median_time(work: Callable[[], float]) -> float:
    """The median time of `work`, repeated until MIN_SECONDS have been measured."""
    times = [work()]
    while sum(times) < MIN_SECONDS:
        times.append(work())
    return statistics.median(times)


def serve(engine: Engine) -> None:
    """Answer requests from standard input until it closes."""
    methods: dict[str, Callable[..., Any]] = {
        "tokenize": engine.tokenize,
        "perplexity": lambda ids, batch=UBATCH: perplexity(engine, ids, batch),
        "prefill": lambda ids: median_time(lambda: engine.prefill(ids)),
        "decode": lambda ids, depth=0: median_time(lambda: engine.decode(ids, depth)),
    }
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": methods[request["method"]](*request["arguments"])}
        except Exception as error:  # the parent decides what a failure means
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=REPLIES, flush=True)


if __name__ == "__main__":
    # An engine may print on standard output: the answers get a descriptor of their own.
    REPLIES = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        loaded = ENGINES[sys.argv[1]](**json.loads(sys.argv[2]))
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=REPLIES, flush=True)
        sys.exit(1)
    print(json.dumps({"result": loaded.version}), file=REPLIES, flush=True)
    serve(loaded)
