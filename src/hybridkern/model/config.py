"""The hyper-parameters of a model, read from the metadata of its file and checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from hybridkern.errors import ModelError

from .architectures import Architecture, architecture_named
from .keys import Keys, MetadataLike, vocabulary_length

Scaling = Literal["none", "linear", "yarn", "longrope"]

MAX_BLOCKS = 4096
MAX_WIDTH = 1 << 20
MAX_HEADS = 1 << 14
MAX_HEAD_DIM = 1 << 13
MAX_CONTEXT = (1 << 31) - 1


@dataclass(frozen=True)
class RopeConfig:
    """How positions become angles (see rope.py).

    dims: values of each head that are rotated, from its start. base: theta of the frequencies. local_base: theta of the
    sliding blocks where it differs; no scaling applies there. factor: how much further than `original_context`
    positions reach (linear, YaRN). attn_factor: multiplies cos and sin; None where the file does not say.
    ext_factor, beta_fast, beta_slow: YaRN's blend.
    """

    layout: Literal["norm", "neox"]
    dims: int
    base: float
    local_base: float | None
    scaling: Scaling
    factor: float
    original_context: int
    attn_factor: float | None
    ext_factor: float
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True)
class BlockConfig:
    """What may differ from block to block. window: tokens that a query sees, itself included; 0: all before it."""

    n_head: int
    n_head_kv: int
    n_ff: int
    window: int


@dataclass(frozen=True)
class ModelConfig:
    """The hyper-parameters of a model. `vocab_key` names the key that n_vocab comes from, for messages."""

    architecture: Architecture
    n_embd: int
    n_vocab: int
    vocab_key: str
    context_length: int
    head_dim_k: int
    head_dim_v: int
    eps: float
    blocks: tuple[BlockConfig, ...]
    rope: RopeConfig
    embedding_scale: float
    attention_scale: float
    attention_softcap: float
    final_softcap: float

    @property
    def n_layer(self) -> int:
        """The number of blocks."""
        return len(self.blocks)

    def key(self, name: str) -> str:
        """The full name of a metadata key of this architecture, for messages."""
        return f"{self.architecture.name}.{name}"

    @classmethod
    def from_metadata(cls, metadata: MetadataLike) -> ModelConfig:
        """Read and check the hyper-parameters. Raises ModelError naming the key and what is expected of it."""
        arch = architecture_named(Keys(metadata, "general").text("architecture"))
        keys = Keys(metadata, arch.name)
        _refuse_what_is_not_built(keys)
        n_layer = keys.integer("block_count", 1, MAX_BLOCKS)
        n_embd = keys.integer("embedding_length", 1, MAX_WIDTH)
        context = keys.integer("context_length", 1, MAX_CONTEXT)
        n_head = keys.per_block("attention.head_count", n_layer, 1, MAX_HEADS)
        head_dim_k = keys.integer("attention.key_length", 1, MAX_HEAD_DIM, None)
        head_dim_v = keys.integer("attention.value_length", 1, MAX_HEAD_DIM, None)
        if (head_dim_k is None or head_dim_v is None) and n_embd % n_head[0]:
            raise ModelError(
                f"{keys.key('embedding_length')} is {n_embd}, which {keys.key('attention.head_count')} = {n_head[0]} "
                f"does not divide; {keys.key('attention.key_length')} and .value_length are needed"
            )
        head_dim_k = head_dim_k or n_embd // n_head[0]
        head_dim_v = head_dim_v or n_embd // n_head[0]
        n_vocab, vocab_key = vocabulary_length(metadata, keys)
        return cls(
            architecture=arch,
            n_embd=n_embd,
            n_vocab=n_vocab,
            vocab_key=vocab_key,
            context_length=context,
            head_dim_k=head_dim_k,
            head_dim_v=head_dim_v,
            eps=keys.real("attention.layer_norm_rms_epsilon", 1e-12, 1.0),
            blocks=_blocks(keys, arch, n_layer, n_head),
            rope=_rope(keys, arch, head_dim_k, context),
            embedding_scale=math.sqrt(n_embd) if arch.scale_embedding else 1.0,
            attention_scale=_attention_scale(keys, arch, n_layer, n_embd, n_head[0], head_dim_k),
            attention_softcap=keys.real("attn_logit_softcapping", 0.0, 1e6, arch.attention_softcap),
            final_softcap=keys.real("final_logit_softcapping", 0.0, 1e6, arch.final_softcap),
        )


def _refuse_what_is_not_built(keys: Keys) -> None:
    experts = keys.integer("expert_count", 0, 1 << 16, 0)
    if experts > 0:
        raise ModelError(f"{keys.key('expert_count')} is {experts}: mixtures of experts are not supported yet")
    if not keys.boolean("attention.causal", True):
        raise ModelError(f"{keys.key('attention.causal')} is false: only causal language models are supported")


def _blocks(keys: Keys, arch: Architecture, n_layer: int, n_head: tuple[int, ...]) -> tuple[BlockConfig, ...]:
    n_head_kv = keys.per_block("attention.head_count_kv", n_layer, 1, MAX_HEADS, n_head)
    n_ff = keys.per_block("feed_forward_length", n_layer, 1, MAX_WIDTH)
    for i, (q, kv) in enumerate(zip(n_head, n_head_kv, strict=True)):
        if q % kv:
            raise ModelError(
                f"block {i} has {keys.key('attention.head_count')} = {q} and {keys.key('attention.head_count_kv')} = "
                f"{kv}; the first must be a multiple of the second"
            )
    windows = _windows(keys, arch, n_layer)
    return tuple(BlockConfig(*b) for b in zip(n_head, n_head_kv, n_ff, windows, strict=True))


def _windows(keys: Keys, arch: Architecture, n_layer: int) -> list[int]:
    """The sliding window of every block; 0 for a block that attends to everything."""
    if not arch.sliding:
        return [0] * n_layer
    window = keys.integer("attention.sliding_window", 0, MAX_CONTEXT, arch.default_window)
    pattern = keys.pattern("attention.sliding_window_pattern", n_layer)
    if pattern is None:
        pattern = arch.full_every
    if isinstance(pattern, int):
        # Sliding blocks come first: with a period of 6, blocks 5, 11, ... attend to everything.
        pattern = tuple(pattern == 0 or i % pattern < pattern - 1 for i in range(n_layer))
    return [window if slides else 0 for slides in pattern]


def _attention_scale(keys: Keys, arch: Architecture, n_layer: int, n_embd: int, n_head: int, head_dim_k: int) -> float:
    scale = keys.real("attention.scale", 0.0, 1e6, 0.0)
    if scale > 0:
        return float(scale)
    if n_layer == arch.wide_query_blocks:
        return math.sqrt(n_head / n_embd)
    return 1 / math.sqrt(head_dim_k)


def _rope(keys: Keys, arch: Architecture, head_dim_k: int, context: int) -> RopeConfig:
    dims = keys.integer("rope.dimension_count", 2, head_dim_k, head_dim_k)
    if dims % 2:
        raise ModelError(f"{keys.key('rope.dimension_count')} is {dims}; an even number of rotated values is expected")
    factor = keys.real("rope.scaling.factor", 0.0, 1e6, 0.0) or keys.real("rope.scale_linear", 0.0, 1e6, 0.0) or 1.0
    # Files from before the type had a key scale linearly; "su" is LongRoPE's first name.
    named = keys.text("rope.scaling.type", ("none", "linear", "yarn", "longrope", "su"), "linear")
    scaling: Scaling = {"su": "longrope"}.get(named, named)
    if scaling == "linear" and factor == 1.0:
        scaling = "none"
    attn_factor = keys.real("rope.scaling.attn_factor", 1e-3, 1e3, None)
    if "rope.scaling.yarn_attn_factor" in keys:
        attn_factor = (attn_factor or 1.0) * keys.real("rope.scaling.yarn_attn_factor", 1e-3, 1e3)
    local: Any = arch.local_rope_base
    if local is not None or "rope.freq_base_swa" in keys:
        local = keys.real("rope.freq_base_swa", 1.0, 1e12, local)
    return RopeConfig(
        layout=arch.rope_layout,
        dims=dims,
        base=keys.real("rope.freq_base", 1.0, 1e12, 10000.0),
        local_base=local,
        scaling=scaling,
        factor=factor,
        original_context=keys.integer("rope.scaling.original_context_length", 1, MAX_CONTEXT, context),
        attn_factor=attn_factor,
        ext_factor=keys.real("rope.scaling.yarn_ext_factor", 0.0, 1.0, 1.0),
        beta_fast=keys.real("rope.scaling.yarn_beta_fast", 0.0, 1e4, 32.0),
        beta_slow=keys.real("rope.scaling.yarn_beta_slow", 0.0, 1e4, 1.0),
    )
