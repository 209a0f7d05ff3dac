"""hybridkern runs GGUF language models on the CPU, on the GPU, or across both.

    import hybridkern as hk

    with hk.load("model.gguf") as model:
        for piece in model.generate("Once upon a time"):
            print(piece, end="", flush=True)

Everything public is named here; the modules behind the names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import (
    ArgumentError,
    ContextError,
    GGUFError,
    HybridKernError,
    KernelError,
    ModelError,
    OutOfMemoryError,
    SamplingError,
    TokenizerError,
)

if TYPE_CHECKING:
    from . import kernels, quants
    from .plan.plan import Plan
    from .runtime.loading import load
    from .runtime.model_api import Model
    from .runtime.piece import Piece
    from .runtime.planning import plan
    from .runtime.session import Session

    __version__: str

__all__ = [
    "ArgumentError",
    "ContextError",
    "GGUFError",
    "HybridKernError",
    "KernelError",
    "Model",
    "ModelError",
    "OutOfMemoryError",
    "Piece",
    "Plan",
    "SamplingError",
    "Session",
    "TokenizerError",
    "__version__",
    "kernels",
    "load",
    "plan",
    "quants",
]

_HOMES = {
    "load": "hybridkern.runtime.loading",
    "Plan": "hybridkern.plan.plan",
    "Model": "hybridkern.runtime.model_api",
    "Piece": "hybridkern.runtime.piece",
    "Session": "hybridkern.runtime.session",
}
_MODULES = ("kernels", "plan", "quants")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("hybridkern")
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = import_module(f"hybridkern.{name}")
    else:
        raise AttributeError(f"module 'hybridkern' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
