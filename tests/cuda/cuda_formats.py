"""Matrices of every format on the device, with their weights in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from cuda_device import Gpu
from random_weights import random_matrix

from hybridkern.kernels.cuda import launches
from hybridkern.kernels.cuda.layout import LAYOUTS, device_bytes

FORMATS = list(LAYOUTS)
QUANTISED = [f for f in FORMATS if not LAYOUTS[f].is_float]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Matrix:
    """at: where it lies on the device; weights: float64 [rows][cols]."""

    type: str
    at: int
    weights: Floats

    @property
    def rows(self) -> int:
        return len(self.weights)

    def part(self, out: int, out_stride: int, bias: int = 0, add: int = 0, add_stride: int = 0) -> dict[str, object]:
        """As a product of a group."""
        return {
            "w": launches.matrix(self.at),
            "out": out,
            "bias": bias,
            "add": add,
            "rows": self.rows,
            "out_stride": out_stride,
            "add_stride": add_stride,
        }


def upload(gpu: Gpu, type_name: str, rows: int, cols: int, seed: int = 0) -> Matrix:
    """A random matrix, converted on the device."""
    rng = np.random.default_rng([seed, rows, cols, *type_name.encode()])
    raw, weights = random_matrix(rng, type_name, rows, cols, 1 / np.sqrt(cols))
    at = gpu.empty(device_bytes(type_name, rows, cols))
    if LAYOUTS[type_name].is_float:
        gpu.cuda.memcpy_htod(at, np.ascontiguousarray(raw))
    else:
        gpu.run(launches.convert(type_name, gpu.put(raw), at, rows, cols))
    return Matrix(type_name, at, weights)


def as_seen(x: npt.NDArray[np.float32], precise: bool = False) -> Floats:
    """What a product of a quantised format makes of x, in float64: of one column 8 bits, or 15, by units of 32 (a scale
    of max|x| / 127 or 16256 each), of several halves, brought to a largest value of about 2^10."""
    if len(x) > 1:
        peak = np.abs(x).max(-1, keepdims=True)
        scale = 2.0 ** (np.floor(np.log2(np.where(peak > 0, peak, 1))) - 10)
        return (x / scale).astype(np.float16).astype(np.float64) * scale
    blocks = x.reshape(-1, 32)
    peak = np.abs(blocks).max(-1, keepdims=True)
    most = np.float32(16256 if precise else 127)
    inverse = np.where(peak > 1e-34, most / np.maximum(peak, np.float32(1e-34)), np.float32(0))
    return (np.rint(blocks * inverse) * (peak / most).astype(np.float64)).reshape(x.shape)


def error(y: npt.NDArray[np.float32], want: Floats) -> float:
    """Largest relative error of a row, as a ratio of norms; NaN and inf count as infinite."""
    if not np.isfinite(y).all():
        return float("inf")
    off, size = (np.linalg.norm(a.reshape(len(a), -1), axis=1) for a in (y - want, want))
    return float((off / size).max())
