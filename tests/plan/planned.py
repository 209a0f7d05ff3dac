"""Plans of tiny models, and of large ones that are nothing but a header."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter

from hybridkern.gguf import GGUFFile
from hybridkern.model import LoadedModel
from hybridkern.plan.devices import MIB, Gpu, Host
from hybridkern.plan.plan import Plan
from hybridkern.plan.planning import Task, make_plan
from hybridkern.plan.rates import DEFAULT_RATES, Rates
from hybridkern.plan.rules import Rules
from hybridkern.plan.sizes import Shape
from hybridkern.plan.unread import Unread

CONTEXT = 512 * MIB


def write_large(path: Path, n_layer: int = 32, d: int = 4096, f: int = 11008, kv: int = 32) -> Path:
    """Llama 2 7B's shape in Q4_K, its data a hole in the file."""
    w = GGUFWriter(path, "llama")
    w.add_block_count(n_layer)
    w.add_context_length(4096)
    w.add_embedding_length(d)
    w.add_feed_forward_length(f)
    w.add_head_count(32)
    w.add_head_count_kv(kv)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_tokenizer_model("llama")
    w.add_token_list([f"t{i}" for i in range(512)])
    w.add_token_scores([0.0] * 512)
    w.add_token_types([1] * 512)
    total = 0

    def tensor(name: str, *shape: int, kind: str = "Q4_K") -> None:
        nonlocal total
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        nbytes = int(np.prod(shape)) // block * size
        raw = (*shape[:-1], shape[-1] // block * size) if kind != "F32" else shape
        dtype = np.dtype(np.float32) if kind == "F32" else np.dtype(np.uint8)
        w.add_tensor_info(f"{name}.weight", raw, dtype, nbytes, GGMLQuantizationType[kind])
        total += -(-nbytes // 32) * 32

    width = d // 32 * kv
    tensor("token_embd", 512, d)
    for i in range(n_layer):
        for name, *shape in (
            ("attn_q", d, d), ("attn_k", width, d), ("attn_v", width, d), ("attn_output", d, d), ("ffn_gate", f, d),
            ("ffn_up", f, d), ("ffn_down", d, f),
        ):  # fmt: skip
            tensor(f"blk.{i}.{name}", *shape)
        tensor(f"blk.{i}.attn_norm", d, kind="F32")
        tensor(f"blk.{i}.ffn_norm", d, kind="F32")
    tensor("output_norm", d, kind="F32")
    tensor("output", 512, d)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    w.close()
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.truncate(-(-size // 32) * 32 + total)
    return path


def model_of(path: Path) -> LoadedModel:
    return LoadedModel.from_gguf(Unread(GGUFFile.open(path)))


def shape(n_ctx: int = 2048, **named: Any) -> Shape:
    values: dict[str, Any] = {"n_batch": 2048, "kv_type": "f16", "n_seq": 4, "spare_pages": 16}
    return Shape(n_ctx, outputs=lambda rows, gpu: min(rows, 64), **(values | named))


def gpu(mib: int, name: str = "cuda0") -> Gpu:
    """That may use so many MiB, CUDA's context not among them."""
    return Gpu(name, "test", mib * MIB, margin=0, context=CONTEXT)


def plan(
    model: LoadedModel,
    mib: int | list[int] | None,
    rules: Rules | None = None,
    rates: Rates = DEFAULT_RATES,
    **task: Any,
) -> Plan:
    """With GPUs of so many MiB; None: without."""
    sizes = [] if mib is None else [mib] if isinstance(mib, int) else mib
    gpus = [gpu(n, f"cuda{i}") for i, n in enumerate(sizes)]
    values: dict[str, Any] = {"shape": shape(), "rules": rules or Rules(), "streams": False}
    return make_plan(model, Task("model", **(values | task)), gpus, Host(1 << 40, 16), rates)
