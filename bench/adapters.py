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
        ubatch: int = UBATCH,
        kv_f32: bool = False,
    ) -> None:
        self.options = {"threads": threads, "flash": flash, "ubatch": ubatch, "kv_f32": kv_f32}
        self._load(path, repack)
        self.ctx = self._context(n_ctx)
        self.deep_ctx, self.deep_depth = None, -1

    def _load(self, path: str, repack: bool) -> None:
        """Import the package and set api, version, model, vocab and n_vocab."""
        import llama_cpp as api

        self.api, self.version = api, api.__version__
        self._silence = api.llama_log_callback(lambda level, text, data: None)  # must outlive the library's use of it
        api.llama_log_set(self._silence, ctypes.c_void_p(0))
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = repack
        self.model = self._open(path, params)
        self.vocab = api.llama_model_get_vocab(self.model)
        self.n_vocab = api.llama_vocab_n_tokens(self.vocab)

    def _open(self, path: str, params: Any) -> Any:
        model = self.api.llama_model_load_from_file(path.encode(), params)
        if not model:
            raise RuntimeError(f"{self.name} cannot load {path}")
        return model

    def _context(self, n_ctx: int) -> Any:
        api = self.api
        params = api.llama_context_default_params()
        params.n_ctx = params.n_batch = n_ctx  # one call takes a whole prompt: only its last position needs logits
        params.n_ubatch = self.options["ubatch"]
        params.n_threads = params.n_threads_batch = self.options["threads"]
        self._set_flash(params, self.options["flash"])
        if self.options["kv_f32"]:
            params.type_k = params.type_v = 0  # GGML_TYPE_F32
        ctx = api.llama_init_from_model(self.model, params)
        if not ctx:
            raise RuntimeError(f"{self.name} cannot make a context of {n_ctx} tokens")
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
            api.llama_get_logits_ith(ctx, -1)  # waits for the result
        finally:
            api.llama_batch_free(batch)

    def _set_flash(self, params: Any, on: bool) -> None:
        api = self.api
        params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED if on else api.LLAMA_FLASH_ATTN_TYPE_DISABLED

    def _clear(self, ctx: Any) -> None:
        self.api.llama_memory_clear(self.api.llama_get_memory(ctx), True)

    def _truncate(self, ctx: Any, depth: int) -> bool:
        """Forget what lies behind `depth` tokens; false where the cache cannot."""
        return self.api.llama_memory_seq_rm(self.api.llama_get_memory(ctx), 0, depth, -1)

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
            first = self.api.llama_get_logits_ith(self.ctx, 0)  # the rows lie one behind the other
            rows = np.ctypeslib.as_array(first, (len(chunk) * self.n_vocab,))
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
        if self.deep_depth == depth and self._truncate(self.deep_ctx, depth):
            return self.deep_ctx
        if self.deep_ctx is not None:
            self.api.llama_free(self.deep_ctx)
        self.deep_ctx, self.deep_depth = self._context(depth + len(ids)), depth
        self._eval(self.deep_ctx, [ids[i % len(ids)] for i in range(depth)], 0)
        return self.deep_ctx


class IkLlamaCpp(LlamaCpp):
    """ik_llama.cpp through ik-llama-cpp-python: the older form of the same interface."""

    name = "ik_llama.cpp"

    def _load(self, path: str, repack: bool) -> None:
        import ik_llama_cpp
        from ik_llama_cpp import _ctypes_api as api

        self.api, self.version = api, ik_llama_cpp.__version__
        library = api._lib
        library.llama_n_vocab.argtypes = [ctypes.c_void_p]
        library.llama_kv_cache_seq_rm.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]
        library.llama_kv_cache_seq_rm.restype = ctypes.c_bool
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.n_gpu_layers = 0
        params.repack_tensors = repack
        params.use_mmap = not repack
        self.model = self._open(path, params)
        self.vocab = self.model  # which llama_tokenize takes here
        self.n_vocab = library.llama_n_vocab(self.model)

    def _set_flash(self, params: Any, on: bool) -> None:
        params.flash_attn = on

    def _clear(self, ctx: Any) -> None:
        self.api.llama_kv_cache_clear(ctx)

    def _truncate(self, ctx: Any, depth: int) -> bool:
        return self.api._lib.llama_kv_cache_seq_rm(ctx, 0, depth, -1)


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


ENGINES: dict[str, Callable[..., Engine]] = {engine.name: engine for engine in (LlamaCpp, IkLlamaCpp, HybridKern)}


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
