"""Models in other formats: which tensor gets which type, importance matrices, and the writing of files."""

from .importance import Importance, read_importance
from .plan import Target, Wishes, plan
from .recipes import FILE_TYPES, FileType, file_type_named
from .write import quantize_file

__all__ = [
    "FILE_TYPES",
    "FileType",
    "Importance",
    "Target",
    "Wishes",
    "file_type_named",
    "plan",
    "quantize_file",
    "read_importance",
]
