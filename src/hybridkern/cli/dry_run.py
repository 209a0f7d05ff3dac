"""What `--dry-run` shows: what would be loaded where, and how large it would be. No tensor data are read."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from .terminal import console, note, size


def show_dry_run(args: argparse.Namespace, options: dict[str, Any]) -> int:
    """Sizes of weights, KV cache and buffers for these arguments."""
    from rich.table import Table

    from hybridkern.gguf import GGUFFile
    from hybridkern.model import ModelConfig
    from hybridkern.runtime.arguments import LoadOptions
    from hybridkern.runtime.footprint import available_memory, kv_bytes, step_bytes
    from hybridkern.runtime.locate import locate

    named = dict(options)
    digest = named.pop("sha256")
    checked = LoadOptions.checked(**named)
    found = locate(args.model, note)
    if found.note:
        note(found.note)
    with GGUFFile.open(found.path, sha256=digest) as file:
        config = ModelConfig.from_metadata(file.metadata)
        n_ctx = checked.context(config.context_length)
        gpu = checked.gpu(config.n_layer)
        weights = Counter[str]()
        for tensor in file.tensors.values():
            weights[_place(tensor.name)] += tensor.nbytes
    where = "CPU" if gpu is None else f"GPU {gpu}"
    n_ubatch = checked.n_ubatch or min(512 if gpu is None else 2048, checked.n_batch)
    cache = kv_bytes(config, n_ctx, checked.kv_type)
    step = step_bytes(config, min(n_ubatch, n_ctx))
    table = Table("what", "where", "size", "detail", title=found.path.name, title_justify="left")
    for place in ("embedding", "blocks", "norm and head", "other"):
        if weights[place]:
            detail = f"{config.n_layer} blocks" if place == "blocks" else ""
            table.add_row(f"weights: {place}", where, size(weights[place]), detail)
    table.add_row("KV cache", where, size(cache), f"{n_ctx} tokens of {config.context_length}, {checked.kv_type}")
    table.add_row("buffers of a step", where, size(step), f"about, for {min(n_ubatch, n_ctx)} tokens")
    table.add_section()
    total = sum(weights.values()) + cache + step
    free = available_memory() if gpu is None else None
    table.add_row("all", "", size(total), f"{size(free)} available" if free else "")
    console().print(table)
    if free and total > free:
        note(f"this would not fit: {size(total)} are needed and {size(free)} are available; lower -c or use -ctk q8_0")
    return 0


def _place(name: str) -> str:
    if name.startswith("token_embd"):
        return "embedding"
    if name.startswith("blk."):
        return "blocks"
    return "norm and head" if name.startswith("output") else "other"
