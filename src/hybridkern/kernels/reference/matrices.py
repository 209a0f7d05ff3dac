"""Products with quantised weights in float64, dequantised by gguf-py: independent of the kernels under test."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import dequantize

from hybridkern.kernels.interface import Weight

Floats = npt.NDArray[np.float64]

# Rows dequantised and multiplied at a time: a head of 262,144 rows need not exist in float64 as a whole.
_ROWS = 16384
_FLOAT_TYPES = ("F32", "F16", "BF16")


def dequantised(weight: Weight, rows: slice | npt.NDArray[np.int64] = slice(None)) -> npt.NDArray[np.float32]:
    """The chosen rows of a weight as float32 [rows][cols]."""
    data = np.ascontiguousarray(weight.data[rows])
    return np.asarray(dequantize(data, gguf.GGMLQuantizationType[weight.type]), dtype=np.float32)


def quantised_activations(x: Floats, weight_type: str, precise: bool = False) -> Floats:
    """x [n][cols] as the kernels see it when they multiply it with this type, back in float64.

    csrc/formats/hk_packed.h and csrc/cpu/hk_cpu.h: codes round(x * m / max|x|) with a scale max|x| / m in float32, per
    32 values, m = 127 for int8 and 127 * 128 for precise products; float weights take x itself, rounded to float32.
    """
    most = np.float32(127 * 128 if precise else 127)
    x32 = x.astype(np.float32)
    if weight_type in _FLOAT_TYPES:
        return x32.astype(np.float64)
    blocks = x32.reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(largest > 0, most / largest, np.float32(0))
        codes = np.rint(blocks * inverse).clip(-most, most)
    scales = largest / most
    return (codes.astype(np.float64) * scales.astype(np.float64)).reshape(x.shape)


class Matrices:
    """Multiplies with weights. `cache` keeps each one as float32 once dequantised."""

    def __init__(self, cache: bool, quantize_activations: bool) -> None:
        self._cache = cache
        self._quantize = quantize_activations
        self._kept: dict[str, npt.NDArray[np.float32]] = {}

    def rows(self, weight: Weight, rows: slice | npt.NDArray[np.int64]) -> Floats:
        """Some rows of a weight in float64."""
        kept = self._kept.get(weight.name)
        return (kept[rows] if kept is not None else dequantised(weight, rows)).astype(np.float64)

    def multiply(self, x: Floats, weight: Weight, precise: bool = False) -> Floats:
        """x [n][cols] @ weight.T -> [n][rows]. precise: of the recorded product."""
        if self._quantize:
            x = quantised_activations(x, weight.type, precise)
        if self._cache and weight.name not in self._kept:
            self._kept[weight.name] = dequantised(weight)
        out = np.empty((len(x), weight.rows))
        for start in range(0, weight.rows, _ROWS):
            part = slice(start, min(start + _ROWS, weight.rows))
            np.matmul(x, self.rows(weight, part).T, out=out[:, part])
        return out
