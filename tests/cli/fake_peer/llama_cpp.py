"""What the worker uses of llama-cpp-python, without an engine: every token is equally likely, and a cache is a list of
its positions, which must follow one another. FAKE_LOG: a file that gets the parameters and every call."""

import ctypes
import json
import os
from types import SimpleNamespace

__version__ = "9.9"
LLAMA_FLASH_ATTN_TYPE_ENABLED, LLAMA_FLASH_ATTN_TYPE_DISABLED = 1, 0
N_VOCAB = 336
llama_token = ctypes.c_int32
_rows = (ctypes.c_float * (N_VOCAB * 4096))()


def _log(**what):
    with open(os.environ["FAKE_LOG"], "a") as file:
        file.write(json.dumps(what) + "\n")


def llama_log_callback(function):
    return function


def llama_log_set(callback, data):
    print("this goes to standard output, and must not reach the answers")


def llama_backend_init():
    pass


def llama_supports_gpu_offload():
    return False


def llama_model_default_params():
    return SimpleNamespace()


def llama_context_default_params():
    return SimpleNamespace()


def llama_model_load_from_file(path, params):
    _log(model=os.path.basename(path.decode()), **vars(params))
    return "model"


def llama_model_get_vocab(model):
    return "vocab"


def llama_vocab_n_tokens(vocab):
    return N_VOCAB


def llama_init_from_model(model, params):
    _log(**vars(params))
    return SimpleNamespace(cache=[], n_ctx=params.n_ctx, n_batch=params.n_batch)


def llama_free(ctx):
    _log(freed=len(ctx.cache))


def llama_get_memory(ctx):
    return ctx


def llama_memory_clear(ctx, data):
    ctx.cache.clear()


def llama_memory_seq_rm(ctx, sequence, first, last):
    del ctx.cache[first:]
    return True


def llama_batch_init(n, embd, n_seq):
    lists = {name: [0] * n for name in ("token", "pos", "n_seq_id", "logits")}
    return SimpleNamespace(n_tokens=0, seq_id=[[0] for _ in range(n)], **lists)


def llama_batch_free(batch):
    pass


def llama_decode(ctx, batch):
    at = len(ctx.cache)
    ctx.cache += batch.pos
    good = ctx.cache == list(range(len(ctx.cache))) and len(ctx.cache) <= ctx.n_ctx and len(batch.pos) <= ctx.n_batch
    _log(at=at, n=len(batch.pos), logits=sum(batch.logits))
    return 0 if good else 1


def llama_get_logits_ith(ctx, row):
    return ctypes.cast(_rows, ctypes.POINTER(ctypes.c_float))
