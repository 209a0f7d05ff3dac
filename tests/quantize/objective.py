"""What a quantiser minimises, in NumPy float64, and the best that any scale can do, found by trying them all."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float64)


def weights_of(x: Floats, importance: Floats | None = None) -> Floats:
    """Weights of the squared errors of x (..., 256 or less), all of one block of 256 or the end of a row."""
    w = np.sqrt((x * x).mean(axis=-1, keepdims=True)) + np.abs(x)
    return w if importance is None else w * importance


def error_of(x: Floats, values: Floats, importance: Floats | None = None) -> float:
    """The weighted sum of squared errors of rows (rows, cols), block of 256 by block of 256."""
    total = 0.0
    for at in range(0, x.shape[1], 256):
        part = x[:, at : at + 256]
        w = weights_of(part, None if importance is None else importance[at : at + 256])
        total += float((w * (part - values[:, at : at + 256]) ** 2).sum())
    return total


def best_symmetric(x: Floats, w: Floats, low: int, high: int) -> float:
    """The least error of x = s q, q an integer of [low, high]: the codes change only at finitely many scales."""
    edges = np.arange(low, high) + 0.5
    cuts = np.unique(np.abs((edges[None, :] / np.where(x == 0, 1, x)[:, None])[x != 0]))
    middles = np.concatenate([(cuts[1:] + cuts[:-1]) / 2, [cuts[-1] * 1.01]])
    least = float((w * x * x).sum())
    for sign in (1, -1):
        for some in np.array_split(sign * middles, max(1, len(middles) // 4096)):
            q = np.clip(np.rint(x[None, :] * some[:, None]), low, high)
            a, b = (w * x * q).sum(1), (w * q * q).sum(1)
            least = min(least, float(((w * x * x).sum() - np.where(b > 0, a * a / np.where(b > 0, b, 1), 0)).min()))
    return least


def best_table(x: Floats, w: Floats, table: Floats) -> float:
    """The least error of x = s table[q]."""
    edges = (table[1:] + table[:-1]) / 2
    cuts = np.unique(np.abs((edges[None, :] / np.where(x == 0, 1, x)[:, None])[x != 0]))
    middles = np.concatenate([(cuts[1:] + cuts[:-1]) / 2, [cuts[-1] * 1.01]])
    least = float((w * x * x).sum())
    for t in np.concatenate([middles, -middles]):
        v = table[np.searchsorted(edges, x * t)]
        least = min(least, float((w * x * x).sum() - (w * x * v).sum() ** 2 / (w * v * v).sum()))
    return least


def best_affine(x: Floats, w: Floats, high: int, steps: int = 120) -> float:
    """The least error of x = s q + m, q an integer of [0, high], over a fine grid of both ends, each made better in
    alternation until nothing changes."""
    least = np.inf
    span = x.max() - x.min()
    lows = np.linspace(x.min() - 0.1 * span, x.min() + 0.35 * span, steps)
    highs = np.linspace(x.max() - 0.35 * span, x.max() + 0.1 * span, steps)
    low, top = (a.reshape(-1, 1) for a in np.meshgrid(lows, highs))
    s, m = (top - low) / high, low
    for _ in range(8):
        q = np.clip(np.rint((x[None, :] - m) / s), 0, high)
        W, q1, q2 = w.sum(), (w * q).sum(1), (w * q * q).sum(1)
        X, qx = (w * x).sum(), (w * x * q).sum(1)
        D = W * q2 - q1 * q1
        fine = D / (W * q2 + 1e-300) > 1e-9
        D = np.where(fine, D, 1)
        s = np.where(fine, (W * qx - q1 * X) / D, 1e-30)[:, None]
        m = np.where(fine, (X * q2 - q1 * qx) / D, X / W)[:, None]
        least = min(least, float((w * (x - s * q - m) ** 2).sum(1).min()))
    return least
