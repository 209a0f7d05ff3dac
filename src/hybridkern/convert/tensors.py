"""Which tensors a model has, under which names, and what becomes of their values on the way to GGUF."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt

from hybridkern.errors import ModelError

from .hparams import Shape
from .shards import Source

Values = npt.NDArray[np.float32]
_NOT_USED = re.compile(r"\.rotary_emb\.inv_freq$")  # frequencies, which follow from the configuration
_SUFFIX = re.compile(r"(.+)\.(weight|bias)")
_TURNED = re.compile(r"blk\.\d+\.attn_([qk])\.(?:weight|bias)")
_NORM = re.compile(r"_norm\.weight$")


@dataclass(frozen=True)
class Place:
    """A tensor of the new file: its name, where its values come from, and their shape."""

    name: str
    source: Source
    shape: tuple[int, ...]

    def values(self, shape: Shape) -> Values:
        """The values as GGUF wants them: float32 [outputs][inputs]."""
        values = self.source.read()
        turned = _TURNED.fullmatch(self.name)
        if turned and shape.arch.rope_layout == "norm":
            return permuted(values, shape.n_head if turned[1] == "q" else shape.n_head_kv)
        if shape.arch.scale_embedding and _NORM.search(self.name):
            return values + np.float32(1)  # Gemma multiplies by 1 + weight
        return values


def permuted(values: Values, n_head: int) -> Values:
    """Rows of Q or K from halves (i, i + n / 2 rotate together) to neighbours (2i, 2i + 1), in every head."""
    halves = values.reshape(n_head, 2, values.shape[0] // n_head // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def wanted(s: Shape) -> dict[str, tuple[int, ...]]:
    """The tensors that a model of this shape has, in file order: name -> shape."""
    d, f, q, kv = s.n_embd, s.n_ff, s.n_head * s.head_dim, s.n_head_kv * s.head_dim
    made: dict[str, tuple[int, ...]] = {"token_embd.weight": (s.n_vocab, d)}
    for i in range(s.n_layer):
        block: dict[str, tuple[int, ...]] = {"attn_norm.weight": (d,)}
        rows = {"attn_qkv": q + 2 * kv} if s.arch.fused_qkv else {"attn_q": q, "attn_k": kv, "attn_v": kv}
        for name, n in rows.items():
            block[f"{name}.weight"] = (n, d)
            if s.arch.qkv_bias or s.attention_bias:
                block[f"{name}.bias"] = (n,)
        if s.arch.qk_norm:
            block |= {"attn_q_norm.weight": (s.head_dim,), "attn_k_norm.weight": (s.head_dim,)}
        block["attn_output.weight"] = (d, q)
        if s.attention_bias and not s.arch.qkv_bias:
            block["attn_output.bias"] = (d,)
        block["ffn_norm.weight"] = (d,)
        feed = {"ffn_up": (2 * f, d)} if s.arch.fused_gate_up else {"ffn_gate": (f, d), "ffn_up": (f, d)}
        for name, shape in (feed | {"ffn_down": (d, f)}).items():
            block[f"{name}.weight"] = shape
            if s.mlp_bias:
                block[f"{name}.bias"] = shape[:1]
        if s.arch.post_norms:
            block |= {"post_attention_norm.weight": (d,), "post_ffw_norm.weight": (d,)}
        made |= {f"blk.{i}.{name}": shape for name, shape in block.items()}
    made["output_norm.weight"] = (d,)
    if not s.tied:
        made["output.weight"] = (s.n_vocab, d)
    return made


def places(s: Shape, found: Mapping[str, Source]) -> list[Place]:
    """Match the tensors of a folder with those of the model.

    Raises ModelError for a tensor that is missing, that the model does not have, or that has another shape.
    """
    names = gguf.get_tensor_name_map(_constant(s), s.n_layer)
    shapes, taken = wanted(s), dict[str, Source]()
    for source in found.values():
        if _NOT_USED.search(source.name) or (s.tied and source.name == "lm_head.weight"):
            continue
        parts = _SUFFIX.fullmatch(source.name)
        stem = names.get_name(parts[1]) if parts else None
        name = f"{stem}.{parts[2]}" if parts and stem else None
        if name not in shapes:
            raise ModelError(f"{source.path}: tensor {source.name!r} is no part of {s.arch.name} as config.json has it")
        if name in taken:
            raise ModelError(f"tensors {taken[name].name!r} and {source.name!r} are both {name}")
        if source.shape != shapes[name]:
            raise ModelError(
                f"{source.path}: tensor {source.name!r} has the shape {source.shape}, but {shapes[name]} follows from "
                "config.json"
            )
        taken[name] = source
    for name in shapes:
        if name not in taken:
            hint = "; is 'tie_word_embeddings' of config.json missing?" if name == "output.weight" else ""
            raise ModelError(f"the folder has no tensor for {name} of shape {shapes[name]}{hint}")
    return [Place(name, taken[name], shape) for name, shape in shapes.items()]


def _constant(s: Shape) -> gguf.MODEL_ARCH:
    return next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == s.arch.name)
