"""GGUF files: a validated, memory-mapped reader and the table of tensor types. No arithmetic, no device."""

from .format_table import BY_NAME, SUPPORTED, TYPES, QuantType
from .metadata import Metadata
from .reader import GGUFFile
from .tensors import TensorInfo
from .validate import Finding, findings_of, require_finite, validate_quants

__all__ = [
    "BY_NAME",
    "SUPPORTED",
    "TYPES",
    "Finding",
    "GGUFFile",
    "Metadata",
    "QuantType",
    "TensorInfo",
    "findings_of",
    "require_finite",
    "validate_quants",
]
