"""Assignments of tiny models, made by hand: by blocks as -ngl counts them, by a rule over names of tensors, or with
blocks that are streamed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hybridkern.model import LoadedModel
from hybridkern.plan.assignment import Assignment

CPU, GPU = "cpu", "cuda0"
LEAST = 33  # tokens of a step in which blocks are streamed


def ruled(
    model: LoadedModel,
    device_of: Callable[[str], str],
    *,
    kv: Callable[[int], str] | None = None,
    embedding: str = CPU,
    head: str = CPU,
    n_ubatch: int = 512,
) -> Assignment:
    """device_of(name of a tensor of a block); kv(block), by default where the block's attention output lies."""
    names = [w.name for w in model.weights.matrices() if w.name.startswith("blk.")]
    at = kv or (lambda block: device_of(f"blk.{block}.attn_output.weight"))
    blocks = range(len(model.kv_specs))
    return Assignment({n: device_of(n) for n in names}, tuple(at(i) for i in blocks), embedding, head, n_ubatch)


def split(model: LoadedModel, n: int, device: str = GPU, **options: int) -> Assignment:
    """The last n of the blocks and the head on a device, the rest on the CPU."""
    first = len(model.kv_specs) + 1 - n
    return ruled(
        model,
        lambda name: device if n and int(name.split(".")[1]) >= first else CPU,
        head=device if n else CPU,
        **options,
    )


def part_of(name: str) -> str:
    """attn or ffn."""
    return name.split(".")[2].split("_")[0]


Rule = Callable[[LoadedModel], Assignment]
RULES: dict[str, Rule] = {
    "ffn on the CPU": lambda m: ruled(m, lambda n: CPU if part_of(n) == "ffn" else GPU, embedding=GPU, head=GPU),
    "ffn of one block on the CPU": lambda m: ruled(
        m, lambda n: CPU if n.startswith("blk.1.ffn") else GPU, embedding=GPU, head=GPU
    ),
    "attention on the CPU": lambda m: ruled(m, lambda n: CPU if part_of(n) == "attn" else GPU, head=GPU),
    "ffn_down on the CPU": lambda m: ruled(m, lambda n: CPU if "ffn_down" in n else GPU, embedding=GPU, head=GPU),
    "ffn_up and attn_k on the CPU": lambda m: ruled(
        m, lambda n: CPU if "ffn_up" in n or "attn_k" in n else GPU, embedding=GPU, head=GPU
    ),
    "attn_v and ffn_gate on the GPU": lambda m: ruled(m, lambda n: GPU if "attn_v" in n or "ffn_gate" in n else CPU),
    "caches on the CPU": lambda m: ruled(m, lambda n: GPU, kv=lambda i: CPU, embedding=GPU, head=GPU),
    "caches on the GPU": lambda m: ruled(m, lambda n: CPU, kv=lambda i: GPU),
    "every second cache on the GPU": lambda m: ruled(m, lambda n: CPU, kv=lambda i: (CPU, GPU)[i % 2]),
    "every second block on the GPU": lambda m: ruled(m, lambda n: (GPU, CPU)[int(n.split(".")[1]) % 2], embedding=GPU),
    "only the head on the GPU": lambda m: ruled(m, lambda n: CPU, head=GPU),
    "only the embedding on the GPU": lambda m: ruled(m, lambda n: CPU, embedding=GPU),
    "embedding and head on the CPU": lambda m: ruled(m, lambda n: GPU),
    "first block and head on the GPU": lambda m: ruled(m, lambda n: GPU if n.startswith("blk.0.") else CPU, head=GPU),
    "three devices": lambda m: ruled(
        m, lambda n: ("cuda1", CPU, GPU)[int(n.split(".")[1]) % 3], embedding="cuda1", head="cuda1"
    ),
    "three devices within a block": lambda m: ruled(
        m,
        lambda n: "cuda1" if "ffn_up" in n or "attn_q" in n else GPU if "ffn_down" in n or "attn_k" in n else CPU,
        kv=lambda i: "cuda1",
        head=GPU,
    ),
}


def streaming(model: LoadedModel, stays: Callable[[str], bool], **options: Any) -> Assignment:
    """Matrices for which `stays` holds are on the CPU, and streamed; the rest is on the GPU, and all caches, unless
    `kv` says otherwise."""
    a = ruled(model, lambda n: CPU if stays(n) else GPU, **({"kv": lambda i: GPU} | options))
    blocks = sorted({int(n.split(".")[1]) for n in a.tensors if stays(n)})
    return replace(a, streamed=dict.fromkeys(blocks, GPU), stream_from=LEAST, stream_depth=2)


def kept(rule: Rule, n: int) -> Rule:
    """With n of the streamed blocks kept."""
    return lambda model: replace(rule(model), stream_kept=n)


def block(name: str) -> int:
    """The number of a tensor's block."""
    return int(name.split(".")[1])


STREAMED: dict[str, Rule] = {
    "all blocks": lambda m: streaming(m, lambda n: True),
    "all blocks, embedding and head on the GPU": lambda m: streaming(m, lambda n: True, embedding=GPU, head=GPU),
    "the first two": lambda m: streaming(m, lambda n: block(n) < 2, head=GPU),
    "the last": lambda m: streaming(m, lambda n: block(n) == 2, embedding=GPU),
    "every second": lambda m: streaming(m, lambda n: block(n) % 2 == 0, embedding=GPU, head=GPU),
    "every FFN": lambda m: streaming(m, lambda n: part_of(n) == "ffn", embedding=GPU, head=GPU),
    "all blocks, caches on the CPU": lambda m: streaming(m, lambda n: True, kv=lambda i: CPU),
    "the first two with theirs on the CPU": lambda m: streaming(
        m, lambda n: block(n) < 2, kv=lambda i: CPU if i < 2 else GPU, embedding=GPU, head=GPU
    ),
}
KEPT: dict[str, Rule] = {
    "one of all": kept(STREAMED["all blocks"], 1),
    "two of all": kept(STREAMED["all blocks, embedding and head on the GPU"], 2),
    "all of the first two": kept(STREAMED["the first two"], 2),
    "two FFNs": kept(STREAMED["every FFN"], 2),
    "two with caches on the CPU": kept(STREAMED["all blocks, caches on the CPU"], 2),
}
