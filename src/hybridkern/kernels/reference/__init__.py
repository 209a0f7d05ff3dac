"""The yardstick: the operation list interpreted in NumPy float64, with weights dequantised by gguf-py."""

from .reference_set import ReferenceSet

__all__ = ["ReferenceSet"]
