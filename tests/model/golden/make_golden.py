#!/usr/bin/env python3
"""Write tiny_logits.npz: what llama.cpp, through llama-cpp-python 0.3, says about the tiny models of ../cases.py.

    pip install llama-cpp-python gguf
    python tests/model/golden/make_golden.py

The models are F32, the KV cache is F32 and flash attention is off, so that float32 rounding is the only noise (and a
float16 table for GELU). Per case the file holds float32 logits [rows][n_vocab] at the positions `cases.GOLDEN_ROWS` of
the ids that `cases.ids_of()` gives. llama.cpp chooses LongRoPE's factors by the context it is opened with, 256 tokens
at least: past an original context of 32, not past one of 256.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from pathlib import Path
from typing import Any

import llama_cpp as api
import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cases import CASES, GOLDEN_ROWS, WITHOUT_GOLDEN, ids_of  # noqa: E402
from tiny import write_tiny  # noqa: E402

_lines: list[str] = []


@api.llama_log_callback
def _log(level: int, text: bytes, data: Any) -> None:
    _lines.append(text.decode(errors="replace"))


def logits(path: Path, ids: np.ndarray) -> np.ndarray:
    """Logits of every position, float32 [tokens][n_vocab]."""
    options = api.llama_model_default_params()
    options.n_gpu_layers = 0
    model = api.llama_model_load_from_file(str(path).encode(), options)
    if not model:
        raise RuntimeError("".join(_lines[-20:]))
    params = api.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = len(ids)
    params.n_threads = params.n_threads_batch = 1
    params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.type_k = params.type_v = 0  # F32
    ctx = api.llama_init_from_model(model, params)
    batch = api.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, True
    if code := api.llama_decode(ctx, batch):
        raise RuntimeError(f"llama_decode returned {code}")
    n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    rows = np.ctypeslib.as_array(api.llama_get_logits(ctx), (len(ids) * n_vocab,)).reshape(len(ids), n_vocab).copy()
    api.llama_batch_free(batch)
    api.llama_free(ctx)
    api.llama_model_free(model)
    return rows


def main() -> None:
    api.llama_log_set(_log, ctypes.c_void_p(0))
    api.llama_backend_init()
    made = {}
    with tempfile.TemporaryDirectory() as scratch:
        for case, (arch, options) in CASES.items():
            if case in WITHOUT_GOLDEN:
                continue
            path = Path(scratch) / f"{case}.gguf"
            write_tiny(path, arch, **options)
            made[case] = logits(path, ids_of())[list(GOLDEN_ROWS)]
    np.savez_compressed(HERE / "tiny_logits.npz", **made)


if __name__ == "__main__":
    main()
