"""The KV cache and attention of the reference set."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hybridkern.errors import KernelError
from hybridkern.kernels.interface import KVSpec

Floats = npt.NDArray[np.float64]


class SequenceCache:
    """Keys and values of one block and one sequence; index = position."""

    def __init__(self, kv: KVSpec) -> None:
        self.k: Floats = np.full((0, kv.n_kv, kv.head_dim_k), np.nan)
        self.v: Floats = np.full((0, kv.n_kv, kv.head_dim_v), np.nan)

    def store(self, positions: npt.NDArray[np.int64], k: Floats, v: Floats) -> None:
        """k [n][G][K] and v [n][G][V] at their positions; what was never written is NaN."""
        need = int(positions.max()) + 1
        if need > len(self.k):
            room = max(need, 2 * len(self.k)) - len(self.k)
            self.k = np.concatenate([self.k, np.full((room, *self.k.shape[1:]), np.nan)])
            self.v = np.concatenate([self.v, np.full((room, *self.v.shape[1:]), np.nan)])
        self.k[positions] = k
        self.v[positions] = v

    def attend(self, q: Floats, positions: npt.NDArray[np.int64], scale: float, window: int, softcap: float) -> Floats:
        """q [n][H][K] at their positions -> [n][H][V]."""
        n, n_head, _ = q.shape
        n_kv = self.k.shape[1]
        low = max(0, int(positions.min()) - window + 1) if window > 0 else 0
        high = int(positions.max()) + 1
        at = np.arange(low, high)
        seen = at[None, :] <= positions[:, None]
        if window > 0:
            seen &= at[None, :] > positions[:, None] - window
        k, v = self.k[low:high], self.v[low:high]
        needed = np.asarray(seen.any(axis=0))
        if np.isnan(k[needed]).any():
            raise KernelError(f"attention over positions up to {high - 1}, of which some were never stored")
        out = np.empty((n, n_head, v.shape[2]))
        group = n_head // n_kv
        for g in range(n_kv):
            heads = slice(g * group, (g + 1) * group)
            scores = np.einsum("nhd,pd->nhp", q[:, heads] * scale, k[:, g], optimize=True)  # [n][H / G][positions]
            if softcap > 0:
                scores = softcap * np.tanh(scores / softcap)
            scores = np.where(seen[:, None, :], scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            # A zero weight must hide what it does not see, NaN included.
            values = np.where(needed[:, None], v[:, g], 0.0)
            out[:, heads] = np.einsum("nhp,pd->nhd", weights, values, optimize=True)
        return out
