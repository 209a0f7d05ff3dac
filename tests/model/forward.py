"""Forward passes in float64, written from the published definitions, one sequence at a time and without a cache.

Deliberately plain and unlike the recorded graph: whole-sequence matrices, masks as matrices, rotation by complex
numbers (RoPE's own definition) or by the rotate-half form of the GPT-NeoX lineage. Gemma's norms multiply by 1 + w;
GGUF files hold 1 + w already.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from tiny import Tiny

Floats = npt.NDArray[np.float64]


def rms_norm(x: Floats, w: Floats, eps: float) -> Floats:
    return w * (x / np.sqrt((x**2).mean(-1)[..., None] + eps))


def softmax(x: Floats) -> Floats:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def silu(x: Floats) -> Floats:
    return x * (1 / (1 + np.exp(-x)))


def gelu(x: Floats) -> Floats:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def rope_frequencies(t: Tiny, n_tokens: int, sliding: bool) -> tuple[list[float], float]:
    """The frequency of each pair, and the factor on cos and sin."""
    dims = t.rope_dims
    if t.arch == "gemma3" and sliding:
        return [10000.0 ** (-2 * i / dims) for i in range(dims // 2)], 1.0
    base = [t.rope_base ** (-2 * i / dims) for i in range(dims // 2)]
    if t.scaling == "linear":
        return [f / t.factor for f in base], 1.0
    if t.scaling == "llama3":
        return [f / d for f, d in zip(base, t.weights["rope_freqs.weight"], strict=True)], 1.0
    if t.scaling == "longrope":
        name = "long" if n_tokens > t.original_context else "short"
        stretch = t.context / t.original_context
        mscale = float(np.float32(math.sqrt(1 + math.log(stretch) / math.log(t.original_context))))
        return [f / d for f, d in zip(base, t.weights[f"rope_factors_{name}.weight"], strict=True)], mscale
    if t.scaling == "yarn":
        # YaRN, section 3.2: ramp between the pairs that turn 32 times and once over the original context.
        def correction(rotations: float) -> float:
            return dims * math.log(t.original_context / (rotations * 2 * math.pi)) / (2 * math.log(t.rope_base))

        low, high = max(math.floor(correction(32)), 0), min(math.ceil(correction(1)), dims - 1)
        mixed = []
        for i, f in enumerate(base):
            ramp = min(1.0, max(0.0, (i - low) / max(high - low, 0.001)))
            mixed.append(f / t.factor * ramp + f * (1 - ramp))
        return mixed, 0.1 * math.log(t.factor) + 1
    return base, 1.0


def rotate_complex(x: Floats, frequencies: list[float], mscale: float) -> Floats:
    """x [n][heads][dim]: pairs (2i, 2i + 1) as complex numbers times e^(i m theta)."""
    n, dims = len(x), 2 * len(frequencies)
    z = x[..., 0:dims:2] + 1j * x[..., 1:dims:2]
    z = z * mscale * np.exp(1j * np.outer(np.arange(n), frequencies))[:, None, :]
    out = x.copy()
    out[..., 0:dims:2], out[..., 1:dims:2] = z.real, z.imag
    return out


def rotate_half(x: Floats, frequencies: list[float], mscale: float) -> Floats:
    """x [n][heads][dim]: x cos + rotate_half(x) sin on the first values of each head."""
    n, dims = len(x), 2 * len(frequencies)
    theta = np.outer(np.arange(n), frequencies + frequencies)[:, None, :]
    part = x[..., :dims]
    turned = np.concatenate([-part[..., dims // 2 :], part[..., : dims // 2]], -1)
    return np.concatenate([(part * np.cos(theta) + turned * np.sin(theta)) * mscale, x[..., dims:]], -1)


def slides(t: Tiny, i: int) -> bool:
    if not t.window:
        return False
    if t.arch == "gemma2":
        return i % 2 == 0
    if t.arch == "gemma3":
        return (i + 1) % 6 != 0
    return True


def attention(t: Tiny, i: int, h: Floats) -> Floats:
    w, n = t.weights, len(h)
    n_head, n_kv, dim = t.n_head[i], t.n_head_kv[i], t.head_dim

    def linear(name: str) -> Floats:
        y = h @ w[f"blk.{i}.{name}.weight"].T
        bias = w.get(f"blk.{i}.{name}.bias")
        return y if bias is None else y + bias

    if t.arch == "phi3":
        q, k, v = np.split(linear("attn_qkv"), [n_head * dim, (n_head + n_kv) * dim], axis=1)
    else:
        q, k, v = linear("attn_q"), linear("attn_k"), linear("attn_v")
    q, k, v = q.reshape(n, n_head, dim), k.reshape(n, n_kv, dim), v.reshape(n, n_kv, dim)
    if t.arch in ("qwen3", "gemma3"):
        q = rms_norm(q, w[f"blk.{i}.attn_q_norm.weight"], t.eps)
        k = rms_norm(k, w[f"blk.{i}.attn_k_norm.weight"], t.eps)
    rotate = rotate_complex if t.arch == "llama" else rotate_half
    turns = rope_frequencies(t, n, slides(t, i))
    q, k = rotate(q, *turns), rotate(k, *turns)
    k, v = np.repeat(k, n_head // n_kv, axis=1), np.repeat(v, n_head // n_kv, axis=1)

    # The 27B models scale by sqrt(n_embd / n_head), the others by the size of a head.
    wide = (t.arch, t.n_layer) in (("gemma2", 46), ("gemma3", 62))
    divisor = math.sqrt(t.n_embd / n_head) if wide else math.sqrt(dim)
    mask = np.tril(np.ones((n, n)))
    if slides(t, i):
        mask = np.triu(mask, -(t.window - 1))
    heads = []
    for j in range(n_head):
        scores = q[:, j] @ k[:, j].T / divisor
        if t.attention_softcap:
            scores = np.tanh(scores / t.attention_softcap) * t.attention_softcap
        heads.append(softmax(np.where(mask > 0, scores, -1e300)) @ v[:, j])
    out = np.concatenate(heads, axis=1) @ w[f"blk.{i}.attn_output.weight"].T
    return out + w.get(f"blk.{i}.attn_output.bias", 0.0)


def feed_forward(t: Tiny, i: int, h: Floats) -> Floats:
    w = t.weights
    if t.arch == "phi3":
        gate, up = np.split(h @ w[f"blk.{i}.ffn_up.weight"].T, 2, axis=1)
    else:
        gate, up = h @ w[f"blk.{i}.ffn_gate.weight"].T, h @ w[f"blk.{i}.ffn_up.weight"].T
    act = gelu if t.arch in ("gemma2", "gemma3") else silu
    return (act(gate) * up) @ w[f"blk.{i}.ffn_down.weight"].T


def forward(t: Tiny, ids: list[int] | npt.NDArray[np.integer]) -> Floats:
    """Logits [len(ids)][n_vocab] of one sequence."""
    w = t.weights
    gemma = t.arch in ("gemma2", "gemma3")
    x = w["token_embd.weight"][np.asarray(ids)]
    if gemma:
        x = x * math.sqrt(t.n_embd)
    for i in range(t.n_layer):
        y = attention(t, i, rms_norm(x, w[f"blk.{i}.attn_norm.weight"], t.eps))
        if gemma:
            y = rms_norm(y, w[f"blk.{i}.post_attention_norm.weight"], t.eps)
        x = x + y
        y = feed_forward(t, i, rms_norm(x, w[f"blk.{i}.ffn_norm.weight"], t.eps))
        if gemma:
            y = rms_norm(y, w[f"blk.{i}.post_ffw_norm.weight"], t.eps)
        x = x + y
    logits = rms_norm(x, w["output_norm.weight"], t.eps) @ w.get("output.weight", w["token_embd.weight"]).T
    if t.final_softcap:
        logits = t.final_softcap * np.tanh(logits / t.final_softcap)
    return logits
