"""Random weights of any tensor type, with a given spread."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

T = GGMLQuantizationType

# Types that gguf-py cannot quantise to: offset of the fp16 scale in a block, offset of the fp16 minimum, and the
# minimum over the scale that makes the mean weight about zero.
_BLOCKS: dict[GGMLQuantizationType, tuple[int, int | None, float]] = {
    T.Q2_K: (80, 82, 1.5),
    T.Q3_K: (108, None, 0.0),
    T.Q4_K: (0, 2, 7.5),
    T.Q5_K: (0, 2, 15.5),
    T.Q6_K: (208, None, 0.0),
    T.IQ4_NL: (0, None, 0.0),
    T.IQ4_XS: (0, None, 0.0),
}


def _random_blocks(rng: np.random.Generator, t: GGMLQuantizationType, n: int, std: float) -> npt.NDArray[np.uint8]:
    """n blocks of random codes [n][block bytes] whose weights have about the standard deviation std."""
    n_bytes = GGML_QUANT_SIZES[t][1]
    blocks = rng.integers(0, 256, (n, n_bytes), dtype=np.uint8)
    if t == T.MXFP4:
        blocks[:, 0] = 128
        spread = float(dequantize(blocks, t).std())
        blocks[:, 0] = np.round(128 + np.log2(std / spread) + rng.uniform(-1, 1, n)).astype(np.uint8)
        return blocks
    at, at_min, ratio = _BLOCKS[t]

    def fill(d: npt.NDArray[np.float64]) -> None:
        blocks[:, at : at + 2] = d.astype(np.float16)[:, None].view(np.uint8)
        if at_min is not None:
            blocks[:, at_min : at_min + 2] = (ratio * d).astype(np.float16)[:, None].view(np.uint8)

    fill(np.ones(n))
    fill(std / float(dequantize(blocks, t).std()) * rng.uniform(0.6, 1.4, n))
    return blocks


def random_matrix(
    rng: np.random.Generator, type_name: str, rows: int, cols: int, std: float
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float64]]:
    """Raw bytes [rows][row bytes] of a random matrix of that type, and its weights in float64 [rows][cols]."""
    t = T[type_name]
    size = GGML_QUANT_SIZES[t][0]
    assert cols % size == 0, f"{cols} columns are no multiple of {type_name}'s block of {size}"
    if t == T.MXFP4 or t in _BLOCKS:
        raw = _random_blocks(rng, t, rows * cols // size, std).reshape(rows, -1)
    else:
        raw = quantize(rng.standard_normal((rows, cols)).astype(np.float32) * np.float32(std), t)
        raw = np.ascontiguousarray(raw).view(np.uint8).reshape(rows, -1)
    return raw, np.asarray(dequantize(raw, t), np.float64).reshape(rows, cols)
