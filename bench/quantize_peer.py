"""The independent quantiser and engine, for bench/quantize.py: run by the Python that has llama-cpp-python.

    quantize_peer.py quantize IN OUT FTYPE THREADS        -> {"seconds": ...}
    quantize_peer.py follow MODEL THREADS < [[ids], ...]  -> per list, what its greedy choice is behind every prefix

    quantize_peer.py score MODEL THREADS OUT EXACT < [[ids], ...]  -> {"rows": ...}

`score` writes float32 logits of the second half of each list but its last position; EXACT 1: with a cache in F32, and
attention without flash. `follow` gives (likeliest token, how far its logit is above the next one) for each position.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src" / "hybridkern" / "measure" / "worker"))


def quantize(source: str, target: str, file_type: int, threads: int) -> dict[str, float]:
    """Time `llama_model_quantize`."""
    import llama_cpp as api

    params = api.llama_model_quantize_default_params()
    params.ftype, params.nthread = file_type, threads
    begin = time.perf_counter()
    code = api.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params))
    seconds = time.perf_counter() - begin
    if code:
        raise SystemExit(f"llama_model_quantize returned {code}")
    return {"seconds": seconds}


def follow(path: str, threads: int, texts: list[list[int]]) -> list[list[tuple[int, float]]]:
    """The greedy choices along given tokens."""
    from llama import LlamaCpp

    engine = LlamaCpp(path, threads=threads, n_ctx=512)
    made = []
    for ids in texts:
        rows = np.concatenate(list(engine.logits(ids)))
        best = np.sort(np.partition(rows, -2, axis=1)[:, -2:], axis=1)
        choices = zip(rows.argmax(axis=1).tolist(), (best[:, 1] - best[:, 0]).tolist(), strict=True)
        made.append(list(choices))
    return made


def score(path: str, threads: int, out: str, exact: bool, texts: list[list[int]]) -> dict[str, int]:
    """The predictions behind the tokens that a perplexity counts."""
    from llama import LlamaCpp

    engine = LlamaCpp(path, threads=threads, n_ctx=512, flash=not exact, kv_type="f32" if exact else "f16")
    total = 0
    with open(out, "wb") as file:
        for ids in texts:
            rows = np.concatenate(list(engine.logits(ids)))[len(ids) // 2 : -1]
            file.write(np.ascontiguousarray(rows, np.float32).tobytes())
            total += len(rows)
    return {"rows": total}


if __name__ == "__main__":
    REPLIES = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # both libraries tell a lot
    os.dup2(2, 1)
    if sys.argv[1] == "quantize":
        answer = quantize(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    elif sys.argv[1] == "score":
        answer = score(sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5] == "1", json.load(sys.stdin))
    else:
        answer = follow(sys.argv[2], int(sys.argv[3]), json.load(sys.stdin))
    json.dump(answer, REPLIES)
    REPLIES.flush()
