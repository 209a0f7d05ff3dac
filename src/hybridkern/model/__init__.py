"""The model layer: configuration and weights of a GGUF file, and the blocks as the papers write them."""

from .architectures import ARCHITECTURES, Architecture
from .config import BlockConfig, ModelConfig, RopeConfig
from .transformer import LoadedModel
from .weights import BlockWeights, ModelWeights

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "BlockConfig",
    "BlockWeights",
    "LoadedModel",
    "ModelConfig",
    "ModelWeights",
    "RopeConfig",
]
