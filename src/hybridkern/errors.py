"""The one family of errors.

Every error that this package raises on purpose is a `HybridKernError`. A message says what is wrong, where
(tensor, metadata key, flag, position) and what to do about it.
"""

from __future__ import annotations


class HybridKernError(Exception):
    """Base of all errors raised on purpose by hybridkern."""


class ArgumentError(HybridKernError, ValueError):
    """An argument or a command-line flag has a value that cannot be used (exit status 2 on the command line)."""


class GGUFError(HybridKernError):
    """A GGUF file is malformed, cut short, incomplete, or newer than this program understands."""


class ModelError(HybridKernError):
    """A valid GGUF file is not a model that can be run: unknown architecture, missing tensor, bad shape."""


class TokenizerError(HybridKernError):
    """A vocabulary or a chat template cannot be used, or a text cannot be encoded with it."""


class ContextError(HybridKernError):
    """A prompt or a sequence does not fit the context."""


class SamplingError(HybridKernError):
    """No token can be sampled, for example because every logit is NaN."""


class KernelError(HybridKernError):
    """A kernel set cannot run what was asked of it: unknown or unsupported instruction set, bad shape or type."""


class OutOfMemoryError(HybridKernError, MemoryError):
    """Memory could not be had: says what was asked, what is free, and what to change."""
