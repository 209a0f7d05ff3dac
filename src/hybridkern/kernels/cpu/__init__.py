"""The CPU kernel set: chosen once by instruction set, it packs weights and lowers recorded operations to tapes."""

from .cpu_set import CpuSet

__all__ = ["CpuSet"]
