"""Binds the tensors of a file to the places of a model, with every shape checked.

A matrix stays as it lies in the file, raw rows of its quantised type; vectors (norms, biases, rotary factors) become
float32. Shapes in messages are (rows, columns), rows being the outputs; a GGUF file lists the columns first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hybridkern.errors import ModelError
from hybridkern.gguf import SUPPORTED
from hybridkern.kernels.interface import Vector, Weight

from .config import BlockConfig, ModelConfig

SUPPORTED_NAMES = tuple(t.name for t in sorted(SUPPORTED, key=lambda t: t.id))
_BLOCK = re.compile(r"blk\.(\d+)\.")
# A tensor of a block that the architecture does not know: leaving it out would compute another model, in silence.
_MEANT = re.compile(r"blk\.\d+\.(attn|ffn|post|layer)_")
_HARMLESS = re.compile(r"blk\.\d+\.attn_rot_embd\.")  # the frequencies that old converters stored
_BF16_SHIFT = 16


class FileLike(Protocol):
    """What the model layer needs of an open file (hybridkern.gguf.GGUFFile)."""

    metadata: Any

    @property
    def tensors(self) -> Mapping[str, Any]: ...

    def data(self, name: str) -> npt.NDArray[np.uint8]: ...


@dataclass(frozen=True, eq=False)
class BlockWeights:
    """The weights of one block; what the architecture does not have is None.

    d = n_embd, q = n_head * head_dim_k, k = n_head_kv * head_dim_k, v = n_head_kv * head_dim_v, f = n_ff.
    Fused: `qkv` holds Q, K and V one below the other, `gate_up` gate and up.
    """

    attn_norm: Vector  # [d]
    q: Weight | None  # (q, d)
    k: Weight | None  # (k, d)
    v: Weight | None  # (v, d)
    qkv: Weight | None  # (q + k + v, d)
    q_bias: Vector | None  # [q]
    k_bias: Vector | None  # [k]
    v_bias: Vector | None  # [v]
    qkv_bias: Vector | None  # [q + k + v]
    q_norm: Vector | None  # [head_dim_k]
    k_norm: Vector | None  # [head_dim_k]
    out: Weight  # (d, n_head * head_dim_v)
    out_bias: Vector | None  # [d]
    post_attn_norm: Vector | None  # [d]
    ffn_norm: Vector  # [d]
    gate: Weight | None  # (f, d)
    up: Weight | None  # (f, d)
    gate_up: Weight | None  # (2 f, d)
    down: Weight  # (d, f)
    gate_bias: Vector | None  # [f]
    up_bias: Vector | None  # [f]
    down_bias: Vector | None  # [d]
    post_ffn_norm: Vector | None  # [d]


@dataclass(frozen=True, eq=False)
class ModelWeights:
    """All weights of a model. `output` is the embedding table where the two are tied."""

    embedding: Weight  # (n_vocab, d)
    blocks: tuple[BlockWeights, ...]
    output_norm: Vector  # [d]
    output: Weight  # (n_vocab, d)
    output_bias: Vector | None  # [n_vocab]
    rope_freqs: npt.NDArray[np.float64] | None  # [dims / 2]
    rope_short: npt.NDArray[np.float64] | None  # [dims / 2]
    rope_long: npt.NDArray[np.float64] | None  # [dims / 2]
    unused: tuple[str, ...]  # tensors of the file that the model does not use

    @property
    def tied(self) -> bool:
        """Whether the head is the embedding table."""
        return self.output is self.embedding

    def matrices(self) -> tuple[Weight, ...]:
        """Every matrix once, in the order of a step."""
        per_block = [
            w
            for b in self.blocks
            for w in (b.q, b.k, b.v, b.qkv, b.out, b.gate, b.up, b.gate_up, b.down)
            if w is not None
        ]
        return (self.embedding, *per_block, *(() if self.tied else (self.output,)))


class _Binder:
    """Takes tensors out of a file by name and keeps count of what was taken."""

    def __init__(self, file: FileLike) -> None:
        self.file = file
        self.taken: set[str] = set()

    def _info(self, name: str, shape: tuple[int, ...], origin: str, required: bool) -> Any:
        info = self.file.tensors.get(name)
        if info is None:
            if required:
                raise ModelError(f"tensor {name!r} of shape {shape} is missing from the file")
            return None
        found = tuple(int(n) for n in reversed(info.shape))
        if found != shape:
            raise ModelError(f"tensor {name!r} has the shape {found}, but {shape} is wanted ({origin})")
        if info.type.name not in SUPPORTED_NAMES:
            supported = ", ".join(SUPPORTED_NAMES)
            raise ModelError(f"tensor {name!r} has the type {info.type.name}; the supported types are {supported}")
        self.taken.add(name)
        return info

    def matrix(self, name: str, rows: int, cols: int, origin: str, required: bool = True) -> Weight | None:
        """The matrix `name`; origin: the metadata keys that the wanted shape follows from."""
        info = self._info(name, (rows, cols), origin, required)
        if info is None:
            return None
        return Weight(name, info.type.name, rows, cols, self.file.data(name).reshape(rows, -1))

    def vector(self, name: str, n: int, origin: str, required: bool = True) -> Vector | None:
        """The vector `name` as float32 [n]."""
        info = self._info(name, (n,), origin, required)
        return None if info is None else Vector(name, _as_float32(name, info.type.name, self.file.data(name)))

    def factors(self, name: str, config: ModelConfig) -> npt.NDArray[np.float64] | None:
        """Divisors of the rotary frequencies as float64 [dims / 2]."""
        vector = self.vector(name, config.rope.dims // 2, f"half of {config.key('rope.dimension_count')}", False)
        if vector is None:
            return None
        values = vector.data.astype(np.float64)
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise ModelError(f"tensor {name!r} holds values that are not finite and positive; divisors are expected")
        return values


def _as_float32(name: str, type_name: str, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    if type_name == "F32":
        values = data.view("<f4").astype(np.float32)
    elif type_name == "F16":
        values = data.view("<f2").astype(np.float32)
    elif type_name == "BF16":
        values = (data.view("<u2").astype(np.uint32) << _BF16_SHIFT).view(np.float32)
    else:
        raise ModelError(f"tensor {name!r} has the type {type_name}; a vector must be F32, F16 or BF16")
    values.flags.writeable = False
    return values


def _check_block_count(file: FileLike, config: ModelConfig) -> None:
    held = {int(m.group(1)) for m in map(_BLOCK.match, file.tensors) if m}
    key = config.key("block_count")
    missing = sorted(set(range(config.n_layer)) - held)
    if missing:
        holds = f"{len(held)} blocks" if held else "no blocks at all"
        raise ModelError(f"{key} is {config.n_layer}, but the file holds {holds}; block {missing[0]} is missing")
    if max(held) >= config.n_layer:
        raise ModelError(f"{key} is {config.n_layer}, but the file holds tensors of block {max(held)}")


def _bind_embedding(bind: _Binder, config: ModelConfig) -> Weight:
    name = "token_embd.weight"
    info = bind.file.tensors.get(name)
    if info is not None and len(info.shape) == 2 and info.shape[1] != config.n_vocab:
        raise ModelError(
            f"the vocabulary has {config.n_vocab} tokens ({config.vocab_key}), but {name!r} has {info.shape[1]} rows; "
            "they must agree"
        )
    table = bind.matrix(name, config.n_vocab, config.n_embd, f"{config.vocab_key}, {config.key('embedding_length')}")
    assert table is not None  # required
    return table


def _bind_block(bind: _Binder, config: ModelConfig, i: int, block: BlockConfig) -> BlockWeights:
    arch, d, f = config.architecture, config.n_embd, block.n_ff
    q, k, v = block.n_head * config.head_dim_k, block.n_head_kv * config.head_dim_k, block.n_head_kv * config.head_dim_v
    o = block.n_head * config.head_dim_v
    width, heads, kv_heads = (
        config.key(n) for n in ("embedding_length", "attention.head_count", "attention.head_count_kv")
    )
    dim_k, dim_v, ff = (
        config.key(n) for n in ("attention.key_length", "attention.value_length", "feed_forward_length")
    )
    q_from, k_from, v_from = f"{heads} x {dim_k}", f"{kv_heads} x {dim_k}", f"{kv_heads} x {dim_v}"
    qkv_from = f"{q_from} + {k_from} + {v_from}"

    def matrix(name: str, rows: int, cols: int, origin: str, there: bool = True) -> Any:
        return bind.matrix(f"blk.{i}.{name}.weight", rows, cols, origin) if there else None

    def norm(name: str, n: int, origin: str, there: bool = True) -> Any:
        return bind.vector(f"blk.{i}.{name}.weight", n, origin) if there else None

    def bias(name: str, n: int, origin: str, there: bool = True, required: bool = False) -> Any:
        return bind.vector(f"blk.{i}.{name}.bias", n, origin, required) if there else None

    split_qkv, split_ffn, need_bias = not arch.fused_qkv, not arch.fused_gate_up, arch.qkv_bias
    return BlockWeights(
        attn_norm=norm("attn_norm", d, width),
        q=matrix("attn_q", q, d, f"{q_from}, {width}", split_qkv),
        k=matrix("attn_k", k, d, f"{k_from}, {width}", split_qkv),
        v=matrix("attn_v", v, d, f"{v_from}, {width}", split_qkv),
        qkv=matrix("attn_qkv", q + k + v, d, f"{qkv_from}, {width}", arch.fused_qkv),
        q_bias=bias("attn_q", q, q_from, split_qkv, need_bias),
        k_bias=bias("attn_k", k, k_from, split_qkv, need_bias),
        v_bias=bias("attn_v", v, v_from, split_qkv, need_bias),
        qkv_bias=bias("attn_qkv", q + k + v, qkv_from, arch.fused_qkv, need_bias),
        q_norm=norm("attn_q_norm", config.head_dim_k, dim_k, arch.qk_norm),
        k_norm=norm("attn_k_norm", config.head_dim_k, dim_k, arch.qk_norm),
        out=matrix("attn_output", d, o, f"{width}, {heads} x {dim_v}"),
        out_bias=bias("attn_output", d, width),
        post_attn_norm=norm("post_attention_norm", d, width, arch.post_norms),
        ffn_norm=norm("ffn_norm", d, width),
        gate=matrix("ffn_gate", f, d, f"{ff}, {width}", split_ffn),
        up=matrix("ffn_up", f, d, f"{ff}, {width}", split_ffn),
        gate_up=matrix("ffn_up", 2 * f, d, f"2 x {ff}, {width}", arch.fused_gate_up),
        down=matrix("ffn_down", d, f, f"{width}, {ff}"),
        gate_bias=bias("ffn_gate", f, ff, split_ffn),
        up_bias=bias("ffn_up", f, ff, split_ffn),
        down_bias=bias("ffn_down", d, width),
        post_ffn_norm=norm("post_ffw_norm", d, width, arch.post_norms),
    )


def bind_weights(file: FileLike, config: ModelConfig) -> ModelWeights:
    """Find every weight of the model in the file. Raises ModelError for what is missing or has the wrong shape."""
    _check_block_count(file, config)
    bind = _Binder(file)
    width = config.key("embedding_length")
    embedding = _bind_embedding(bind, config)
    blocks = tuple(_bind_block(bind, config, i, b) for i, b in enumerate(config.blocks))
    output_norm = bind.vector("output_norm.weight", config.n_embd, width)
    assert output_norm is not None  # required
    head = bind.matrix("output.weight", config.n_vocab, config.n_embd, f"{config.vocab_key}, {width}", False)
    bias = bind.vector("output.bias", config.n_vocab, config.vocab_key, False)
    names = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
    factors, short, long = (bind.factors(name, config) for name in names)
    unused = tuple(name for name in file.tensors if name not in bind.taken)
    for name in unused:
        if _MEANT.match(name) and not _HARMLESS.match(name):
            raise ModelError(
                f"tensor {name!r} is not part of the architecture {config.architecture.name!r} as known here"
            )
    return ModelWeights(embedding, blocks, output_norm, head or embedding, bias, factors, short, long, unused)
