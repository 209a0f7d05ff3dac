"""Metadata from a dict, for configurations that need no file."""

from __future__ import annotations

from typing import Any

from hybridkern.errors import GGUFError

_MISSING: Any = object()


class FakeMetadata(dict[str, Any]):
    """Answers like hybridkern.gguf.Metadata."""

    def _get(self, key: str, default: Any, kinds: tuple[type, ...]) -> Any:
        if key not in self:
            if default is _MISSING:
                raise GGUFError(f"{key} is missing")
            return default
        if type(self[key]) not in kinds:
            raise GGUFError(f"{key} has the wrong type")
        return self[key]

    def get_int(self, key: str, default: Any = _MISSING) -> Any:
        return self._get(key, default, (int,))

    def get_float(self, key: str, default: Any = _MISSING) -> Any:
        return self._get(key, default, (float, int))

    def get_str(self, key: str, default: Any = _MISSING) -> Any:
        return self._get(key, default, (str,))

    def get_bool(self, key: str, default: Any = _MISSING) -> Any:
        return self._get(key, default, (bool,))


def metadata_of(arch: str, **own: Any) -> FakeMetadata:
    """Metadata of a small model; keyword names have "__" for a dot, None leaves a key out."""
    keys: dict[str, Any] = {
        "context_length": 4096,
        "embedding_length": 256,
        "block_count": 2,
        "feed_forward_length": 512,
        "attention.head_count": 4,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "vocab_size": 1000,
    }
    keys |= {name.replace("__", "."): value for name, value in own.items()}
    named = {f"{arch}.{name}": value for name, value in keys.items() if value is not None}
    return FakeMetadata({"general.architecture": arch} | named)
