"""One transformer block, as the papers write it.

    x = x + post_norm(W_o attention(rope(norm(W_q h)), rope(norm(W_k h)), W_v h)),  h = attn_norm(x)
    x = x + post_norm(W_down (act(W_gate h) * W_up h)),                             h = ffn_norm(x)

where the norms of q and k, the biases and the post-norms are there only in the architectures that have them.
Products behind the last attention are precise: they are computed only for rows whose logits are asked for, and what
they round is not averaged by any block behind them.

d = n_embd; H, G: query and KV heads; K, V: sizes of a key and a value head; f = n_ff. Every buffer is [tokens][width].
"""

from __future__ import annotations

from hybridkern.kernels.interface import Angles, Buffer, KVSpec, Recorder

from .config import BlockConfig, ModelConfig
from .weights import BlockWeights


class Scratch:
    """The buffers that blocks share: one per name and width, since no block needs what the one before it left there."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._made: dict[tuple[str, int], Buffer] = {}

    def __call__(self, name: str, width: int) -> Buffer:
        key = (name, width)
        if key not in self._made:
            self._made[key] = self._recorder.buffer(name, width)
        return self._made[key]


def record_attention(
    r: Recorder,
    scratch: Scratch,
    x: Buffer,
    w: BlockWeights,
    config: ModelConfig,
    block: BlockConfig,
    kv: KVSpec,
    angles: Angles,
    last: bool,
) -> None:
    """x = x + attention of x over the KV cache; x: [tokens][d], in place. last: of the model."""
    d, head_k, head_v = config.n_embd, config.head_dim_k, config.head_dim_v
    n_q, n_k, n_v = block.n_head * head_k, block.n_head_kv * head_k, block.n_head_kv * head_v

    h = scratch("h", d)  # [d]
    r.rmsnorm(h, x, w.attn_norm, config.eps)
    if w.qkv is not None:
        qkv = scratch("qkv", n_q + n_k + n_v)  # [H K | G K | G V]
        r.matmul(qkv, h, w.qkv, w.qkv_bias)
        q, k, v = qkv.view(0, n_q), qkv.view(n_q, n_k), qkv.view(n_q + n_k, n_v)
    else:
        assert w.q is not None and w.k is not None and w.v is not None
        q, k, v = scratch("q", n_q), scratch("k", n_k), scratch("v", n_v)  # [H K], [G K], [G V]
        r.matmul(q, h, w.q, w.q_bias)
        r.matmul(k, h, w.k, w.k_bias)
        r.matmul(v, h, w.v, w.v_bias)
    if w.q_norm is not None and w.k_norm is not None:
        r.head_norm(q, head_k, w.q_norm, config.eps)
        r.head_norm(k, head_k, w.k_norm, config.eps)
    r.rope(q, angles, head_k, config.rope.layout)
    r.rope(k, angles, head_k, config.rope.layout)
    r.store_kv(kv, k, v)
    a = scratch("attended", block.n_head * head_v)  # [H V]
    r.attend(a, q, kv, block.n_head, config.attention_scale, block.window, config.attention_softcap)
    if w.post_attn_norm is None:
        r.matmul(x, a, w.out, w.out_bias, add=x, precise=last)
    else:
        o = scratch("o", d)  # [d]
        r.matmul(o, a, w.out, w.out_bias, precise=last)
        r.rmsnorm(x, o, w.post_attn_norm, config.eps, add=x)


def record_feed_forward(
    r: Recorder, scratch: Scratch, x: Buffer, w: BlockWeights, config: ModelConfig, block: BlockConfig, last: bool
) -> None:
    """x = x + gated feed-forward of x; x: [tokens][d], in place. last: of the model."""
    d, f = config.n_embd, block.n_ff

    h = scratch("h", d)  # [d]
    r.rmsnorm(h, x, w.ffn_norm, config.eps)
    if w.gate_up is not None:
        gate_up = scratch("gate_up", 2 * f)  # [f | f]
        r.matmul(gate_up, h, w.gate_up, precise=last)
        gate, up = gate_up.view(0, f), gate_up.view(f, f)
    else:
        assert w.gate is not None and w.up is not None
        gate, up = scratch("gate", f), scratch("up", f)  # [f], [f]
        r.matmul(gate, h, w.gate, w.gate_bias, precise=last)
        r.matmul(up, h, w.up, w.up_bias, precise=last)
    g = scratch("gated", f)  # [f]
    r.glu(g, gate, up, config.architecture.activation)
    if w.post_ffn_norm is None:
        r.matmul(x, g, w.down, w.down_bias, add=x, precise=last)
    else:
        o = scratch("o", d)  # [d]
        r.matmul(o, g, w.down, w.down_bias, precise=last)
        r.rmsnorm(x, o, w.post_ffn_norm, config.eps, add=x)


def record_block(
    r: Recorder,
    scratch: Scratch,
    x: Buffer,
    w: BlockWeights,
    config: ModelConfig,
    block: BlockConfig,
    kv: KVSpec,
    angles: Angles,
    last: bool,
) -> None:
    """x = block(x); x: [tokens][d], in place. last: of the model."""
    record_attention(r, scratch, x, w, config, block, kv, angles, last)
    record_feed_forward(r, scratch, x, w, config, block, last)
