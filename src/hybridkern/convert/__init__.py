"""Hugging Face folders (config.json, safetensors, tokenizer) to GGUF files."""

from .write import OUT_TYPES, Conversion, convert_folder, inspect_folder

__all__ = ["OUT_TYPES", "Conversion", "convert_folder", "inspect_folder"]
