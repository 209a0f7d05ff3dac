"""Files that are enough for a quantiser: hyper-parameters, and tensors of two rows.

Beside the golden data, so that what they were made from is what the tests read.
"""

from __future__ import annotations

import itertools
from typing import Any

import gguf
import numpy as np

SPLIT = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
FUSED = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
# name -> architecture, blocks, heads, KV heads, rows of the residual, of the feed-forward, head tensor, kinds
MODELS = {
    "llama-gqa3-30": ("llama", 30, 9, 3, 576, 1536, False, SPLIT),
    "llama-mha-32": ("llama", 32, 8, 8, 512, 1024, True, SPLIT),
    "llama-gqa4-16": ("llama", 16, 8, 2, 512, 1024, True, SPLIT),
    "llama-gqa8-80": ("llama", 80, 16, 2, 512, 1024, True, SPLIT),
    "gemma3-18": ("gemma3", 18, 4, 1, 640, 2048, False, SPLIT),
    "gemma2-26": ("gemma2", 26, 8, 4, 512, 1024, False, SPLIT),
    "qwen2-24": ("qwen2", 24, 14, 2, 896, 4864, True, SPLIT),
    "qwen3-28": ("qwen3", 28, 16, 8, 1024, 3072, False, SPLIT),
    "phi3-32": ("phi3", 32, 8, 8, 512, 1024, True, FUSED),
}


def make(
    path: str, arch: str, blocks: int, heads: int, kv: int, d: int, f: int, head: bool, kinds: Any, seed: int = 0
) -> None:
    """A file that is enough for a quantiser: hyper-parameters and tensors of two rows."""
    w = gguf.GGUFWriter(path, arch)
    ints = {
        "context_length": 512, "embedding_length": d, "block_count": blocks, "feed_forward_length": f,
        "attention.head_count": heads, "attention.head_count_kv": kv, "vocab_size": 2,
        "rope.dimension_count": d // heads, "attention.sliding_window": 512,
    }  # fmt: skip
    for key, value in ints.items():
        w.add_uint32(f"{arch}.{key}", value)
    w.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-5)
    rng = np.random.default_rng(seed)

    def matrix(name: str, cols: int) -> None:
        w.add_tensor(name, rng.normal(0, 1, (2, cols)).astype(np.float16))

    matrix("token_embd.weight", d)
    if head:
        matrix("output.weight", d)
    w.add_tensor("output_norm.weight", np.ones(d, np.float32))
    for i, kind in itertools.product(range(blocks), kinds):
        matrix(f"blk.{i}.{kind}.weight", f if kind == "ffn_down" else d)
    for i in range(blocks):
        w.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(d, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
