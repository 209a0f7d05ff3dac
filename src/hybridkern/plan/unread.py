"""A model file whose tensor data nobody reads: for a plan, shapes are enough."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkern.model.weights import FileLike

_ONE = {"F32": np.float32(1).tobytes(), "F16": np.float16(1).tobytes(), "BF16": b"\x80\x3f"}


class Unread:
    """Stands for an open file: its vectors hold ones, its matrices are views of the mapping, not touched."""

    def __init__(self, file: FileLike) -> None:
        self._file = file
        self.metadata: Any = file.metadata

    @property
    def tensors(self) -> Mapping[str, Any]:
        """The file's."""
        return self._file.tensors

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """uint8 (nbytes,)."""
        info = self._file.tensors[name]
        one = _ONE.get(info.type.name)
        if len(info.shape) > 1 or one is None:
            return self._file.data(name)
        return np.frombuffer(one * (info.nbytes // len(one)), np.uint8)
