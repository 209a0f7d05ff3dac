"""How much memory a model will want, and how much there is. Nothing is allocated here."""

from __future__ import annotations

import warnings
from pathlib import Path

from hybridkern.model import LoadedModel, ModelConfig

from .arguments import LoadOptions

PAGE = 128  # tokens per page of the KV cache
_LINE = 64  # planes are padded to cache lines
# Bytes of n values of one head, by KV type: 32 values of q8_0 and q4_0 share one fp16 scale.
_KV_BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 1 + 2 / 32, "q4_0": 0.5 + 2 / 32}


def kv_bytes(config: ModelConfig, n_tokens: int, kv_type: str) -> int:
    """The KV cache of one sequence of `n_tokens`, in whole pages."""
    pages = -(-n_tokens // PAGE)
    per_value = _KV_BYTES[kv_type]
    total = 0
    for block in config.blocks:
        for width in (config.head_dim_k, config.head_dim_v):
            plane = int(per_value * width * PAGE)
            total += pages * block.n_head_kv * -(-plane // _LINE) * _LINE
    return total


def kv_token_bytes(config: ModelConfig, block: int, kv_type: str) -> int:
    """The cache of one token in one block."""
    width = config.head_dim_k + config.head_dim_v
    return int(_KV_BYTES[kv_type] * width * config.blocks[block].n_head_kv)


def step_bytes(config: ModelConfig, n_tokens: int) -> int:
    """The activations of a step of `n_tokens` whose last logits are wanted, roughly: the widest block's buffers."""
    widest = max(
        2 * b.n_ff + (2 * b.n_head + b.n_head_kv) * config.head_dim_k + b.n_head_kv * config.head_dim_v
        for b in config.blocks
    )
    return 4 * (n_tokens * (3 * config.n_embd + widest) + config.n_vocab)


def packing_bytes(model: LoadedModel, n_ctx: int, options: LoadOptions) -> int:
    """What a model takes beside its file's pages if its weights are packed: them, one full context, and a step."""
    weights = model.weights
    tables = 0 if weights.tied else weights.embedding.data.nbytes  # stays in the file
    packed = sum(w.data.nbytes for w in weights.matrices()) - tables
    step = min(options.n_ubatch or 512, options.n_batch, n_ctx)
    return packed + kv_bytes(model.config, n_ctx, options.kv_type) + step_bytes(model.config, step)


def packs_weights(mapped: bool, model: LoadedModel, n_ctx: int, options: LoadOptions) -> bool:
    """Whether the CPU's weights are packed; warns where that is decided here against it. mapped: the file is."""
    if options.gpu(len(model.config.blocks)) is not None:
        return True
    if options.repack is not None or not mapped:
        return options.repack is not False
    need, free = packing_bytes(model, n_ctx, options), available_memory()
    if free is None or need <= free:
        return True
    warnings.warn(
        f"packing the weights takes {need >> 20} MiB, and {free >> 20} MiB are available: they are multiplied as "
        "they lie in the file, which is slower (repack=True or --repack packs all the same)",
        stacklevel=5,
    )
    return False


def available_memory() -> int | None:
    """Bytes that can be had without swapping: the machine's, or what the control group has left; None: unknown."""
    limits = [limit for limit in (_meminfo("MemAvailable"), _cgroup_left()) if limit is not None]
    return min(limits) if limits else None


def total_memory() -> int | None:
    """Bytes of main memory; None: unknown."""
    return _meminfo("MemTotal")


def _meminfo(key: str) -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _cgroup_left() -> int | None:
    """What control group v2 still grants; page cache can be taken back and does not count as used."""
    root = Path("/sys/fs/cgroup")
    try:
        limit = (root / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((root / "memory.current").read_text())
        for line in (root / "memory.stat").read_text().splitlines():
            if line.startswith(("inactive_file ", "active_file ")):
                used -= int(line.split()[1])
        return max(0, int(limit) - used)
    except (OSError, ValueError, IndexError):
        return None
