"""The ring of step slots: NumPy arrays that Python fills and the step program reads, made once."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hybridkern.kernels import _cpu

Ints = npt.NDArray[np.int32]


class Slot(Protocol):
    """A slot of any kernel set. tokens, positions, sequences, variants: int32 [max_rows]; outputs: int32 [max_outputs];
    best, bad, best_value, best_lse: [max_outputs], filled by greedy steps."""

    tokens: Ints
    positions: Ints
    sequences: Ints
    variants: Ints
    outputs: Ints
    best: Ints
    bad: Ints
    best_value: npt.NDArray[np.float32]
    best_lse: npt.NDArray[np.float64]
    native: _cpu.Slot

    def rows(self, m: int) -> npt.NDArray[np.float32]:
        """Logits of the m outputs of the last step, float32 [m][n_vocab]: a view."""
        ...


class StepSlot:
    """A slot of the CPU set: inputs and results of one step of at most max_rows tokens and max_outputs outputs.

    logits: float32 [max_outputs][n_vocab].
    """

    def __init__(self, max_rows: int, max_outputs: int, n_seq: int, max_pages: int, n_vocab: int) -> None:
        self.tokens: Ints = np.zeros(max_rows, np.int32)
        self.positions: Ints = np.zeros(max_rows, np.int32)
        self.sequences: Ints = np.zeros(max_rows, np.int32)
        self.variants: Ints = np.zeros(max_rows, np.int32)
        self.outputs: Ints = np.zeros(max_outputs, np.int32)
        self._pages: Ints = np.zeros((n_seq, max_pages), np.int32)
        self.best: Ints = np.zeros(max_outputs, np.int32)
        self.bad: Ints = np.zeros(max_outputs, np.int32)
        self.best_value = np.zeros(max_outputs, np.float32)
        self.best_lse = np.zeros(max_outputs, np.float64)
        stride = -(-n_vocab // 16) * 16
        self._memory = _cpu.Memory(max_outputs * stride * 4, True)
        rows = np.frombuffer(self._memory, np.float32, max_outputs * stride).reshape(max_outputs, stride)
        self.logits: npt.NDArray[np.float32] = rows[:, :n_vocab]
        names: dict[str, Any] = {
            "tokens": self.tokens,
            "positions": self.positions,
            "sequences": self.sequences,
            "variants": self.variants,
            "outputs": self.outputs,
            "pages": self._pages,
            "best": self.best,
            "bad": self.bad,
            "best_value": self.best_value,
            "best_lse": self.best_lse,
        }
        addresses = {name: array.ctypes.data for name, array in names.items()}
        self.native = _cpu.Slot(**addresses, logits=self._memory.address)

    def rows(self, m: int) -> npt.NDArray[np.float32]:
        """The logits of the last step, which had m outputs."""
        return self.logits[:m]
