"""Metadata keys read with limits: a missing or senseless value becomes a ModelError that names the key."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from hybridkern.errors import GGUFError, ModelError

REQUIRED: Any = object()


class MetadataLike(Protocol):
    """What a model reads of a file's metadata (hybridkern.gguf.Metadata)."""

    def __contains__(self, key: object) -> bool: ...
    def __getitem__(self, key: str) -> Any: ...
    def get_int(self, key: str, default: Any = ...) -> Any: ...
    def get_float(self, key: str, default: Any = ...) -> Any: ...
    def get_str(self, key: str, default: Any = ...) -> Any: ...
    def get_bool(self, key: str, default: Any = ...) -> Any: ...


class Keys:
    """The keys "<architecture>.<name>" of a file, each checked against what it may be."""

    def __init__(self, metadata: MetadataLike, architecture: str) -> None:
        self._metadata = metadata
        self._prefix = architecture

    def key(self, name: str) -> str:
        """The full name of a key, for messages."""
        return f"{self._prefix}.{name}"

    def __contains__(self, name: str) -> bool:
        return self.key(name) in self._metadata

    def _get(self, name: str, getter: Callable[[str], Any], default: Any, wanted: str) -> Any:
        key = self.key(name)
        if key not in self._metadata:
            if default is REQUIRED:
                raise ModelError(f"metadata key {key!r} is missing; {wanted} is expected")
            return default
        try:
            return getter(key)
        except GGUFError as e:
            raise ModelError(f"metadata key {key!r} has the wrong type; {wanted} is expected ({e})") from e

    def integer(self, name: str, low: int, high: int, default: Any = REQUIRED) -> Any:
        """An integer in [low, high]."""
        wanted = f"an integer from {low} to {high}"
        value = self._get(name, self._metadata.get_int, default, wanted)
        if name in self and not low <= value <= high:
            raise ModelError(f"metadata key {self.key(name)!r} is {value}; {wanted} is expected")
        return value

    def real(self, name: str, low: float, high: float, default: Any = REQUIRED) -> Any:
        """A finite float in [low, high]."""
        wanted = f"a number from {low:g} to {high:g}"
        value = self._get(name, self._metadata.get_float, default, wanted)
        if name in self and not (math.isfinite(value) and low <= value <= high):
            raise ModelError(f"metadata key {self.key(name)!r} is {value}; {wanted} is expected")
        return value

    def text(self, name: str, known: tuple[str, ...] = (), default: Any = REQUIRED) -> Any:
        """A string, out of `known` where that is not empty."""
        wanted = "one of " + ", ".join(known) if known else "a string"
        value = self._get(name, self._metadata.get_str, default, wanted)
        if known and name in self and value not in known:
            raise ModelError(f"metadata key {self.key(name)!r} is {value!r}; {wanted} is expected")
        return value

    def boolean(self, name: str, default: Any = REQUIRED) -> Any:
        """A bool."""
        return self._get(name, self._metadata.get_bool, default, "a bool")

    def per_block(self, name: str, n: int, low: int, high: int, default: Any = REQUIRED) -> tuple[int, ...]:
        """One integer in [low, high] for each of n blocks; a file may give one for all, or an array."""
        wanted = f"an integer from {low} to {high}, or an array of {n} of them, one per block,"
        value = self._get(name, self._metadata.__getitem__, default, wanted)
        if isinstance(value, tuple):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            values = [value] * n
        elif isinstance(value, np.ndarray) and value.dtype.kind in "iu":
            values = [int(v) for v in value]
        else:
            raise ModelError(f"metadata key {self.key(name)!r} has the wrong type; {wanted} is expected")
        if len(values) != n:
            raise ModelError(f"metadata key {self.key(name)!r} has {len(values)} values; {wanted} is expected")
        for i, v in enumerate(values):
            if not low <= v <= high:
                raise ModelError(f"metadata key {self.key(name)!r} is {v} for block {i}; {wanted} is expected")
        return tuple(values)

    def pattern(self, name: str, n: int) -> int | tuple[bool, ...] | None:
        """Which blocks slide: a period, one bool per block, or None where the key is missing."""
        wanted = f"an integer from 0 to {n}, or an array of {n} bools,"
        value = self._get(name, self._metadata.__getitem__, None, wanted)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1 << 16):
            return value
        if isinstance(value, np.ndarray) and value.dtype.kind in "iub":
            if len(value) != n:
                raise ModelError(f"metadata key {self.key(name)!r} has {len(value)} values; {wanted} is expected")
            return tuple(bool(v) for v in value)
        raise ModelError(f"metadata key {self.key(name)!r} is {value!r}; {wanted} is expected")


def vocabulary_length(metadata: Mapping[str, Any] | MetadataLike, keys: Keys) -> tuple[int, str]:
    """The number of tokens and the key that says so: the token list's length or, without one, `vocab_size`."""
    tokens_key = "tokenizer.ggml.tokens"
    if tokens_key in metadata:
        tokens = metadata[tokens_key]
        if not isinstance(tokens, list) or not tokens:
            raise ModelError(f"metadata key {tokens_key!r} is not a list of strings; the vocabulary is expected")
        return len(tokens), tokens_key
    if "vocab_size" in keys:
        return keys.integer("vocab_size", 1, 1 << 26), keys.key("vocab_size")
    raise ModelError(f"metadata key {tokens_key!r} is missing; the vocabulary is expected")
