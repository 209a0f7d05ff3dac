"""The architectures, as data: what distinguishes one pre-norm decoder from another.

All of them are the same block (norm, attention, residual, norm, gated feed-forward, residual); a line here says which
pieces a published model adds to it. Sources: Llama 2 (arXiv 2307.09288), Llama 3 (2407.21783), Mistral 7B (2310.06825),
Qwen2 (2407.10671), Qwen3 (2505.09388), Gemma 2 (2408.00118), Gemma 3 (2503.19786), Phi-3 (2404.14219); tensor and key
names are those of the public GGUF specification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hybridkern.errors import ModelError

Layout = Literal["norm", "neox"]
Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True)
class Architecture:
    """What sets an architecture apart.

    rope_layout: "norm" rotates the pairs (2i, 2i + 1), "neox" (i, i + rot / 2). Files of the llama family hold Q and K
        permuted to "norm" by their converter; the others keep the published order.
    fused_qkv, fused_gate_up: one matrix holds Q, K and V (gate and up), one below the other.
    qkv_bias: Q, K and V have biases that must be there; where it is False a bias is used if the file has one.
    qk_norm: every head of Q and K is RMS-normalised before it is rotated.
    post_norms: the outputs of attention and feed-forward are normalised before they join the residual stream.
    scale_embedding: embeddings are multiplied by sqrt(n_embd).
    sliding: the file's sliding window is used. Every `full_every`-th block attends to everything; 0: none does.
    default_window: the window where the file names none, 0 for no window.
    local_rope_base: base of the sliding blocks' rotary angles, which no scaling applies to; None: as all blocks.
    attention_softcap, final_softcap: defaults where the file has no such key; 0 for none.
    wide_query_blocks: a model of this many blocks scales its queries by sqrt(n_head / n_embd), not by its head size
        (the 27B models' `query_pre_attn_scalar`, which GGUF files do not carry).
    """

    name: str
    rope_layout: Layout
    fused_qkv: bool = False
    fused_gate_up: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    activation: Activation = "silu"
    scale_embedding: bool = False
    sliding: bool = False
    full_every: int = 0
    default_window: int = 0
    local_rope_base: float | None = None
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    wide_query_blocks: int = 0


ARCHITECTURES: dict[str, Architecture] = {
    a.name: a
    for a in (
        # Llama 1-3, SmolLM, and Mistral, whose first version slides a window in every block.
        Architecture("llama", "norm", sliding=True),
        Architecture("qwen2", "neox", qkv_bias=True),
        Architecture("qwen3", "neox", qk_norm=True),
        Architecture(
            "gemma2",
            "neox",
            post_norms=True,
            activation="gelu_tanh",
            scale_embedding=True,
            sliding=True,
            full_every=2,
            default_window=4096,
            attention_softcap=50.0,
            final_softcap=30.0,
            wide_query_blocks=46,
        ),
        Architecture(
            "gemma3",
            "neox",
            qk_norm=True,
            post_norms=True,
            activation="gelu_tanh",
            scale_embedding=True,
            sliding=True,
            full_every=6,
            local_rope_base=10000.0,
            wide_query_blocks=62,
        ),
        Architecture("phi3", "neox", fused_qkv=True, fused_gate_up=True, sliding=True),
    )
}


def architecture_named(name: str) -> Architecture:
    """The architecture that `general.architecture` names. Raises ModelError, listing the known ones."""
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelError(f"general.architecture is {name!r}, which is not supported; the known ones are {known}")
    return ARCHITECTURES[name]
