"""How much memory there is, and what a token takes of the cache. Nothing is allocated here."""

from __future__ import annotations

from pathlib import Path

from hybridkern.model import ModelConfig

# Bytes of n values of one head, by KV type: 32 values of q8_0 and q4_0 share one fp16 scale.
_KV_BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 1 + 2 / 32, "q4_0": 0.5 + 2 / 32}


def kv_token_bytes(config: ModelConfig, block: int, kv_type: str) -> int:
    """The cache of one token in one block."""
    width = config.head_dim_k + config.head_dim_v
    return int(_KV_BYTES[kv_type] * width * config.blocks[block].n_head_kv)


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
