"""llama.cpp and ik_llama.cpp behind the small interface that the worker process serves.

This file runs in the peer's own Python: it imports the peer's package and NumPy, nothing else.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

UBATCH = 512
KV_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}  # numbers of ggml


class Engine(Protocol):
    """What a peer must offer."""

    name: str
    version: str

    def tokenize(self, text: str, special: bool = False, bos: bool = False) -> list[int]:
        """Token ids of `text`; `special` parses control tokens in it, `bos` adds what the model asks to be added."""

    def logits(self, ids: Sequence[int], batch: int = UBATCH) -> Iterator[np.ndarray]:
        """Logits of every position, in chunks of (up to `batch`, n_vocab), computed `batch` tokens at a time."""

    def seconds(self, prompt: Sequence[int], ids: Sequence[int], depth: int) -> float:
        """Time of a prompt at once, with logits at its last position only, and of len(ids) single-token steps behind
        it; both behind a context of `depth` tokens."""


class LlamaCpp:
    """llama.cpp through llama-cpp-python's low-level interface."""

    name, package = "llama.cpp", "llama-cpp-python"

    def __init__(
        self,
        path: str,
        threads: int = 2,
        n_ctx: int = 1024,
        repack: bool = True,
        flash: bool = True,
        ubatch: int = UBATCH,
        batch: int | None = None,
        kv_type: str = "f16",
        threads_batch: int | None = None,
        n_gpu_layers: int = 0,
    ) -> None:
        """batch: most tokens of one call, None: a whole prompt."""
        self.threads = threads, threads_batch or threads
        self.flash, self.ubatch, self.batch, self.kv_type = flash, ubatch, batch, kv_type
        self._load(path, repack, n_gpu_layers)
        self.ctx = self._context(n_ctx)
        self.deep_ctx: Any = None
        self.deep_depth, self.deep_room = -1, 0

    def _load(self, path: str, repack: bool, n_gpu_layers: int) -> None:
        """Import the package and set api, version, model, vocab and n_vocab."""
        import llama_cpp as api

        self.api, self.version = api, api.__version__
        self._silence = api.llama_log_callback(lambda level, text, data: None)  # must outlive the library's use of it
        api.llama_log_set(self._silence, ctypes.c_void_p(0))
        params = self._params(n_gpu_layers, api.llama_supports_gpu_offload)
        params.use_extra_bufts = repack
        self.model = self._open(path, params)
        self.vocab = api.llama_model_get_vocab(self.model)
        self.n_vocab = api.llama_vocab_n_tokens(self.vocab)

    def _params(self, n_gpu_layers: int, offloads: Callable[[], bool]) -> Any:
        """Parameters of a model, once the library is ready. offloads: whether it has a GPU's backend."""
        self.api.llama_backend_init()
        if n_gpu_layers and not offloads():
            raise RuntimeError(f"this {self.package} was built without a GPU's backend")
        params = self.api.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        return params

    def _open(self, path: str, params: Any) -> Any:
        model = self.api.llama_model_load_from_file(path.encode(), params)
        if not model:
            raise RuntimeError(f"{self.name} cannot load {path}")
        return model

    def _context(self, n_ctx: int) -> Any:
        api = self.api
        params = api.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = min(n_ctx, self.batch or n_ctx)
        params.n_ubatch = min(self.ubatch, params.n_batch)
        params.n_threads, params.n_threads_batch = self.threads
        self._set_flash(params, self.flash)
        params.type_k = params.type_v = KV_TYPES[self.kv_type]
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
        batch = min(batch, self.batch or batch)
        for start in range(0, len(ids), batch):
            chunk = ids[start : start + batch]
            self._eval(self.ctx, chunk, start, all_rows=True)
            first = self.api.llama_get_logits_ith(self.ctx, 0)  # the rows lie one behind the other
            rows = np.ctypeslib.as_array(first, (len(chunk) * self.n_vocab,))
            yield rows.reshape(len(chunk), self.n_vocab).copy()

    def seconds(self, prompt: Sequence[int], ids: Sequence[int], depth: int) -> float:
        """See `Engine.seconds`."""
        ctx = self.ctx
        if depth:
            ctx = self._at_depth([*prompt, *ids], depth)
        else:
            self._clear(ctx)
        step = self.batch or max(1, len(prompt))
        begin = time.perf_counter()
        for i in range(0, len(prompt), step):
            self._eval(ctx, prompt[i : i + step], depth + i)
        for i, token in enumerate(ids, len(prompt)):
            self._eval(ctx, [token], depth + i)
        return time.perf_counter() - begin

    def _at_depth(self, ids: Sequence[int], depth: int) -> Any:
        """A second context that holds `depth` tokens: filled once, and cut back to that depth afterwards."""
        room = depth + len(ids)
        if self.deep_depth == depth and self.deep_room >= room and self._truncate(self.deep_ctx, depth):
            return self.deep_ctx
        if self.deep_ctx is not None:
            self.api.llama_free(self.deep_ctx)
        self.deep_ctx, self.deep_depth, self.deep_room = self._context(room), depth, room
        step = self.batch or depth
        for i in range(0, depth, step):
            self._eval(self.deep_ctx, [ids[j % len(ids)] for j in range(i, min(depth, i + step))], i)
        return self.deep_ctx


class IkLlamaCpp(LlamaCpp):
    """ik_llama.cpp through ik-llama-cpp-python: the older form of the same interface."""

    name, package = "ik_llama.cpp", "ik-llama-cpp-python"

    def _load(self, path: str, repack: bool, n_gpu_layers: int) -> None:
        import ik_llama_cpp
        from ik_llama_cpp import _ctypes_api as api

        self.api, self.version = api, ik_llama_cpp.__version__
        library = api._lib
        library.llama_n_vocab.argtypes = [ctypes.c_void_p]
        library.llama_kv_cache_seq_rm.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]
        library.llama_kv_cache_seq_rm.restype = ctypes.c_bool
        library.llama_supports_gpu_offload.restype = ctypes.c_bool
        params = self._params(n_gpu_layers, library.llama_supports_gpu_offload)
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
