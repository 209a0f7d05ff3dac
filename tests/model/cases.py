"""The tiny F32 models that every architecture is checked with: options of write_tiny, by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tiny import N_VOCAB

LONG = {"original_context": 256, "context": 1024}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-mqa-tied": ("llama", {"n_head_kv": 1, "tied": True}),
    "llama-biases": ("llama", {"biases": True}),
    "llama-kv-array": ("llama", {"n_layer": 3, "n_head_kv": [4, 1, 2], "n_ff": [96, 64, 128]}),
    "llama-window": ("llama", {"window": 5}),
    "llama-partial-rotary": ("llama", {"rope_dims": 8}),
    "llama-linear": ("llama", {"scaling": "linear"}),
    "llama-llama3": ("llama", {"scaling": "llama3"}),
    "llama-yarn": ("llama", {"scaling": "yarn", "head_dim": 32, **LONG}),
    "qwen2": ("qwen2", {}),
    "qwen2-yarn": ("qwen2", {"scaling": "yarn", "n_head": 2, "n_head_kv": 1, "tied": True, **LONG}),
    "qwen3": ("qwen3", {}),
    "qwen3-yarn": ("qwen3", {"scaling": "yarn", "factor": 8.0, **LONG}),
    "gemma2": ("gemma2", {"n_layer": 4, "tied": True}),
    "gemma3": ("gemma3", {"n_layer": 7, "tied": True}),
    "gemma3-linear": ("gemma3", {"n_layer": 7, "tied": True, "scaling": "linear", "factor": 8.0}),
    "phi3": ("phi3", {}),
    "phi3-window": ("phi3", {"window": 6}),
    "phi3-partial-rotary": ("phi3", {"rope_dims": 12, "tied": True}),
    "phi3-longrope": ("phi3", {"scaling": "longrope"}),
    "phi3-longrope-short": ("phi3", {"scaling": "longrope", **LONG}),
    "gemma2-46": ("gemma2", {"n_layer": 46, "n_embd": 32, "n_head": 2, "n_head_kv": 1, "n_ff": 32, "tied": True}),
    "gemma3-62": ("gemma3", {"n_layer": 62, "n_embd": 32, "n_head": 2, "n_head_kv": 1, "n_ff": 32, "tied": True}),
}

# Past every window, and past LongRoPE's original context of 32.
N_TOKENS = 40
# The positions that golden logits are kept of: around a window of 8 and a context of 32, and the last.
GOLDEN_ROWS = (0, 1, 7, 8, 9, 31, 33, 39)
# What llama.cpp does otherwise: in the llama architecture it reads the head counts of the first block alone and wants
# whole heads rotated, and no window slides there or in phi3.
WITHOUT_GOLDEN = ("llama-kv-array", "llama-partial-rotary", "llama-window", "phi3-window")


def ids_of(n: int = N_TOKENS, seed: int = 1) -> npt.NDArray[np.int64]:
    """n random token ids."""
    return np.random.default_rng(seed).integers(3, N_VOCAB, n)
