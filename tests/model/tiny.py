"""Tiny models of every architecture with random weights, written as GGUF files that a whole program can load."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, GGUFWriter
from gguf.quants import quantize
from random_weights import random_matrix
from vocabularies import bpe, spm

Floats = npt.NDArray[np.float64]
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")
N_VOCAB = 336


@dataclass
class Tiny:
    """What a test knows about a tiny model: hyper-parameters as plain numbers, and weights in float64 by tensor name.

    Matrices are [outputs][inputs]; what the file does not name (a tied head) is not there either.
    """

    path: Path
    arch: str
    n_layer: int
    n_embd: int
    n_head: list[int]
    n_head_kv: list[int]
    head_dim: int
    n_ff: list[int]
    n_vocab: int
    context: int
    eps: float
    rope_base: float
    rope_dims: int
    window: int
    scaling: str | None
    factor: float
    original_context: int
    attention_softcap: float
    final_softcap: float
    weights: dict[str, Floats] = field(default_factory=dict)


class _Writer:
    """Collects tensors, so that a test can drop or add some before they are written."""

    def __init__(self, tiny: Tiny, type_name: str, rng: np.random.Generator) -> None:
        self.tiny, self.type_name, self.rng = tiny, type_name, rng
        self.tensors: dict[str, tuple[npt.NDArray[Any], GGMLQuantizationType]] = {}

    def matrix(self, name: str, rows: int, cols: int, std: float | None = None) -> None:
        raw, values = random_matrix(self.rng, self.type_name, rows, cols, std or 1 / math.sqrt(cols))
        self.tensors[f"{name}.weight"] = raw, GGMLQuantizationType[self.type_name]
        self.tiny.weights[f"{name}.weight"] = values

    def vector(self, name: str, values: Floats) -> None:
        exact = values.astype(np.float32)
        self.tensors[name] = exact, GGMLQuantizationType.F32
        self.tiny.weights[name] = exact.astype(np.float64)

    def norm(self, name: str, n: int) -> None:
        self.vector(f"{name}.weight", 1 + 0.2 * self.rng.standard_normal(n))

    def bias(self, name: str, n: int) -> None:
        self.vector(f"{name}.bias", 0.3 * self.rng.standard_normal(n))


def _add_tensors(w: _Writer, tied: bool, biases: bool) -> None:
    t, d = w.tiny, w.tiny.n_embd
    w.matrix("token_embd", t.n_vocab, d, 0.5)
    for i in range(t.n_layer):
        b, q, kv, f = f"blk.{i}", t.n_head[i] * t.head_dim, t.n_head_kv[i] * t.head_dim, t.n_ff[i]
        w.norm(f"{b}.attn_norm", d)
        if t.arch == "phi3":
            w.matrix(f"{b}.attn_qkv", q + 2 * kv, d)
            w.matrix(f"{b}.ffn_up", 2 * f, d)
        else:
            for name, rows in (("q", q), ("k", kv), ("v", kv)):
                w.matrix(f"{b}.attn_{name}", rows, d)
                if t.arch == "qwen2" or biases:
                    w.bias(f"{b}.attn_{name}", rows)
            w.matrix(f"{b}.ffn_gate", f, d)
            w.matrix(f"{b}.ffn_up", f, d)
        if t.arch in ("qwen3", "gemma3"):
            w.norm(f"{b}.attn_q_norm", t.head_dim)
            w.norm(f"{b}.attn_k_norm", t.head_dim)
        w.matrix(f"{b}.attn_output", d, q)
        w.norm(f"{b}.ffn_norm", d)
        w.matrix(f"{b}.ffn_down", d, f)
        if biases:
            w.bias(f"{b}.attn_output", d)
        if t.arch in ("gemma2", "gemma3"):
            w.norm(f"{b}.post_attention_norm", d)
            w.norm(f"{b}.post_ffw_norm", d)
    w.norm("output_norm", d)
    if not tied:
        w.matrix("output", t.n_vocab, d)
    pairs = t.rope_dims // 2
    if t.scaling == "llama3":
        w.vector("rope_freqs.weight", np.linspace(1.0, t.factor, pairs))
    if t.scaling == "longrope":
        w.vector("rope_factors_short.weight", np.linspace(1.0, 1.5, pairs))
        w.vector("rope_factors_long.weight", np.linspace(1.0, 4.0 * t.factor, pairs))


def _metadata(t: Tiny, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    def shared(values: list[int]) -> int | list[int]:
        return values[0] if len(set(values)) == 1 else values

    own: dict[str, Any] = {
        "context_length": t.context,
        "embedding_length": t.n_embd,
        "block_count": t.n_layer,
        "feed_forward_length": shared(t.n_ff),
        "attention.head_count": shared(t.n_head),
        "attention.head_count_kv": shared(t.n_head_kv),
        "attention.key_length": t.head_dim,
        "attention.value_length": t.head_dim,
        "attention.layer_norm_rms_epsilon": t.eps,
        "rope.dimension_count": t.rope_dims,
        "rope.freq_base": t.rope_base,
        "vocab_size": t.n_vocab,
    }
    if t.window:
        own["attention.sliding_window"] = t.window
    if t.scaling in ("linear", "yarn"):
        own |= {"rope.scaling.type": t.scaling, "rope.scaling.factor": t.factor}
    if t.scaling in ("yarn", "longrope"):
        own["rope.scaling.original_context_length"] = t.original_context
    if t.scaling == "longrope":
        stretch = t.context / t.original_context
        own["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(stretch) / math.log(t.original_context))
    if t.arch == "gemma2":
        own |= {"attn_logit_softcapping": t.attention_softcap, "final_logit_softcapping": t.final_softcap}
    head = {"general.architecture": t.arch, "general.name": "tiny", "general.file_type": 0}
    return head | {f"{t.arch}.{k}": v for k, v in own.items()} | dict(vocabulary)


def _write(path: Path, arch: str, metadata: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    writer = GGUFWriter(path, arch)
    del writer.kv_data[0]["general.architecture"]
    for key, value in metadata.items():
        first = value[0] if isinstance(value, list) and value else value
        kind = {bool: GGUFValueType.BOOL, int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32}.get(type(first))
        kind = kind or GGUFValueType.STRING
        if isinstance(value, list):
            element = GGUFValueType.INT32 if kind == GGUFValueType.UINT32 else kind
            writer.add_key_value(key, value, GGUFValueType.ARRAY, element)
        else:
            writer.add_key_value(key, value, kind)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_tiny(
    path: Path | str,
    arch: str,
    *,
    type: str = "F32",
    n_layer: int = 2,
    n_embd: int | None = None,
    n_head: int | list[int] = 4,
    n_head_kv: int | list[int] = 2,
    head_dim: int | None = None,
    n_ff: int | list[int] | None = None,
    n_vocab: int = N_VOCAB,
    context: int = 256,
    window: int | None = None,
    scaling: str | None = None,
    factor: float = 4.0,
    original_context: int = 32,
    rope_dims: int | None = None,
    tied: bool = False,
    biases: bool = False,
    vocabulary: str | None = None,
    seed: int = 0,
    metadata: Mapping[str, Any] | None = None,
    drop: Iterable[str] = (),
    extra: Mapping[str, Floats] | None = None,
    retype: Mapping[str, str] | None = None,
) -> Tiny:
    """Write a tiny model of random weights to `path`.

    type: of every matrix; widths default to what its blocks divide. scaling: None, "linear", "llama3", "yarn" or
    "longrope". window: None for a window of 8 where the architecture has one. vocabulary: "spm" or "bpe".
    metadata: keys to replace, or with None to leave out. drop: tensors to leave out. extra: F32 tensors to add.
    retype: tensors of the default file to store as another type (from F32; I32 reinterprets the bytes).
    """
    block = GGML_QUANT_SIZES[GGMLQuantizationType[type]][0]
    n_embd = n_embd or (256 if block == 256 else 64)
    heads = [n_head] * n_layer if isinstance(n_head, int) else list(n_head)
    kv_heads = [n_head_kv] * n_layer if isinstance(n_head_kv, int) else list(n_head_kv)
    # Gemma and Qwen3 have heads that are wider than n_embd / n_head; phi3 and llama have not.
    wide = 2 if arch in ("gemma2", "gemma3", "qwen3") else 1
    head_dim = head_dim or n_embd // heads[0] * wide
    n_ff = n_ff or (512 if block == 256 else 96)
    if window is None:
        window = 8 if arch in ("gemma2", "gemma3") else 0
    tiny = Tiny(
        path=Path(path),
        arch=arch,
        n_layer=n_layer,
        n_embd=n_embd,
        n_head=heads,
        n_head_kv=kv_heads,
        head_dim=head_dim,
        n_ff=[n_ff] * n_layer if isinstance(n_ff, int) else list(n_ff),
        n_vocab=n_vocab,
        context=context,
        eps=float(np.float32(1e-5)),
        rope_base=10000.0 if arch != "gemma3" else 1e6,
        rope_dims=rope_dims or head_dim,
        window=window,
        scaling=scaling,
        factor=factor,
        original_context=original_context,
        attention_softcap=1.5 if arch == "gemma2" else 0.0,
        final_softcap=3.0 if arch == "gemma2" else 0.0,
    )
    writer = _Writer(tiny, type, np.random.default_rng(seed))
    _add_tensors(writer, tied, biases)
    for name in drop:
        del writer.tensors[name]
    for name, values in (extra or {}).items():
        writer.vector(name, np.asarray(values, np.float64))
    for name, other in (retype or {}).items():
        kind, data = GGMLQuantizationType[other], writer.tensors[name][0].view(np.float32)
        writer.tensors[name] = (data.view(np.int32) if other == "I32" else quantize(data, kind)), kind
    words = (vocabulary or ("bpe" if arch.startswith("qwen") else "spm")) == "bpe"
    keys = _metadata(tiny, (bpe if words else spm)(n_vocab)) | dict(metadata or {})
    _write(tiny.path, arch, {k: v for k, v in keys.items() if v is not None}, writer.tensors)
    return tiny
