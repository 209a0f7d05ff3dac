"""Checks of what the caller passes: an `ArgumentError` names the parameter, its value and what is allowed."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hybridkern.errors import ArgumentError

from .threads import MAX_THREADS

KV_TYPES = ("f16", "q8_0", "q4_0", "f32")
DEFAULT_CONTEXT = 8192
MAX_BATCH = 1 << 24
_MAX = 2**31 - 1


def count(name: str, value: Any, low: int, high: int = _MAX) -> int:
    """`value` as an integer within [low, high]."""
    span = f"{low} or more" if high == _MAX else f"from {low} to {high}"
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name} = {value!r} is not an integer; allowed: {span}") from None
    if not low <= number <= high or isinstance(value, bool):
        raise ArgumentError(f"{name} = {value!r} is out of range; allowed: {span}")
    return number


@dataclass(frozen=True)
class LoadOptions:
    """The arguments of `load`, checked; what was left out is still None."""

    n_ctx: int | str | None
    threads: int | None
    threads_batch: int | None
    n_batch: int
    n_ubatch: int | None
    kv_type: str
    mmap: bool
    mlock: bool
    validate: bool
    n_gpu_layers: int | str | None = None
    device: int = 0
    repack: bool | None = None

    @classmethod
    def checked(cls, **named: Any) -> LoadOptions:
        """Check every argument that can be checked without the file."""
        if named["n_ctx"] not in (None, "model"):
            named["n_ctx"] = count("n_ctx", named["n_ctx"], 2)
        for name in ("threads", "threads_batch"):
            if named[name] is not None:
                named[name] = count(name, named[name], 1, MAX_THREADS)
        named["n_batch"] = count("n_batch", named["n_batch"], 1, MAX_BATCH)
        if named["n_ubatch"] is not None:
            named["n_ubatch"] = count("n_ubatch", named["n_ubatch"], 1, MAX_BATCH)
        if named["kv_type"] not in KV_TYPES:
            raise ArgumentError(f"kv_type = {named['kv_type']!r}; allowed: {', '.join(KV_TYPES)}")
        named["n_gpu_layers"] = _layers(named.get("n_gpu_layers"))
        named["device"] = count("device", named.get("device", 0), 0, 1023)
        return cls(**named)

    def gpu(self, n_layer: int) -> int | None:
        """The GPU that a model of so many blocks lies on, None for the CPU."""
        layers = self.n_gpu_layers
        if layers in (None, "auto", 0):
            return None
        if layers != "all" and int(layers or 0) <= n_layer:
            raise ArgumentError(
                f"n_gpu_layers = {layers}: this version runs a model wholly on the GPU ('all', or {n_layer + 1} and "
                f"more for these {n_layer} blocks and the head) or wholly on the CPU (0), not divided between them"
            )
        return self.device

    def context(self, trained: int) -> int:
        """The context to use for a model that was trained with `trained` tokens.

        The default is the model's own, at most DEFAULT_CONTEXT: 128k tokens of cache would not fit most machines.
        """
        if self.n_ctx == "model":
            return trained
        if self.n_ctx is None:
            return min(trained, DEFAULT_CONTEXT)
        return int(self.n_ctx)


def _layers(value: Any) -> int | str | None:
    if value is None or value in ("auto", "all"):
        return value  # type: ignore[no-any-return]
    try:
        return count("n_gpu_layers", value, 0)
    except ArgumentError:
        raise ArgumentError(f"n_gpu_layers = {value!r}; allowed: 'all', 'auto', or a number from 0 on") from None


def token_ids(name: str, ids: Iterable[Any], n_vocab: int) -> list[int]:
    """`ids` as integers of the vocabulary."""
    try:
        out = [operator.index(token) for token in ids]
    except TypeError:
        raise ArgumentError(f"{name}: token ids are integers") from None
    if out and not 0 <= min(out) <= max(out) < n_vocab:
        bad = next(token for token in out if not 0 <= token < n_vocab)
        raise ArgumentError(f"{name}: token id {bad} is outside the vocabulary of {n_vocab} tokens")
    return out


def row_indices(rows: Iterable[Any] | None, n: int) -> list[int]:
    """The positions that `rows` names, from 0 to n - 1; negative ones count from the end, None means all."""
    if rows is None:
        return list(range(n))
    out = []
    if not isinstance(rows, Iterable):
        raise ArgumentError(f"rows = {rows!r}: a list of positions is needed, such as [-1] for the last")
    for row in rows:
        index = count("rows", row, -n, n - 1)
        out.append(index + n if index < 0 else index)
    return out
