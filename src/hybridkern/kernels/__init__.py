"""Kernel sets: the operations of a model on one kind of processor, and the seam that they share.

For direct use from NumPy:

    from hybridkern import kernels
    W = kernels.pack(raw, "Q4_K", (rows, cols))    # raw GGUF blocks, (outputs, inputs)
    y = kernels.matvec(W, x)                       # float32 (rows,)
    Y = kernels.matmul(W, X)                       # X (n, cols) -> float32 (n, rows)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .direct import (
        PackedMatrix,
        QuantizedActivations,
        active,
        available,
        matmul,
        matvec,
        pack,
        quantize_activations,
    )

__all__ = [
    "PackedMatrix",
    "QuantizedActivations",
    "active",
    "available",
    "matmul",
    "matvec",
    "pack",
    "quantize_activations",
]


def __getattr__(name: str) -> Any:
    # Late: the seam (interface.py) is used without the extension module too, for example by the reference set.
    if name in __all__:
        from . import direct

        return getattr(direct, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
