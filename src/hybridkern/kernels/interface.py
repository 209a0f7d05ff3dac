"""The seam between a model and the kernel sets: what a block can say.

A block calls the methods of a `Recorder`. Nothing is computed then: each call appends an `Op` to the tape. A kernel set
lowers the list once (fusing neighbours as it sees fit) and replays it for every step; what changes from step to step
comes from a `Batch`. The reference set interprets the same list in NumPy float64.

Shapes: a buffer holds float32 [rows][width], where rows is the number of tokens of the step ("tokens") or the number of
rows whose logits were asked for ("outputs"). Weights are (rows, cols) = (outputs, inputs), as in a GGUF file: a product
is y = x @ W.T.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Rows = Literal["tokens", "outputs"]


@dataclass(frozen=True, eq=False)
class Buffer:
    """Float32 [rows][width]; `base`/`offset` make it a view of columns [offset, offset + width) of another buffer."""

    name: str
    width: int
    rows: Rows = "tokens"
    base: Buffer | None = None
    offset: int = 0

    @property
    def root(self) -> Buffer:
        """The buffer that owns the memory."""
        return self.base or self

    def view(self, offset: int, width: int) -> Buffer:
        """Columns [offset, offset + width) of this buffer, sharing its memory."""
        if offset < 0 or width <= 0 or offset + width > self.width:
            raise ValueError(f"view [{offset}, {offset + width}) of buffer {self.name!r} of width {self.width}")
        name = f"{self.name}[{offset}:{offset + width}]"
        return Buffer(name, width, self.rows, self.root, self.offset + offset)


@dataclass(frozen=True, eq=False)
class Weight:
    """A matrix of `rows` x `cols` weights as raw GGUF rows: `data` is uint8 [rows][bytes per row], read-only."""

    name: str
    type: str  # name in the format table, e.g. "Q4_K"
    rows: int
    cols: int
    data: np.ndarray


@dataclass(frozen=True, eq=False)
class Vector:
    """A float32 vector: a norm's weight or a bias."""

    name: str
    data: np.ndarray


@dataclass(frozen=True, eq=False)
class Angles:
    """cos and sin of position * inv_freq[i], both times `mscale`, for every token: [tokens][rot / 2][2].

    `inv_freq` is float64 [rot / 2]. Angles are computed in float64 and rounded once to float32. Tokens whose
    `Batch.variants` entry is 1 use `inv_freq_long` and `mscale_long` instead (LongRoPE: a sequence longer than the
    original context uses other factors, for all of its tokens).
    """

    name: str
    inv_freq: np.ndarray
    mscale: float = 1.0
    inv_freq_long: np.ndarray | None = None
    mscale_long: float = 1.0


@dataclass(frozen=True, eq=False)
class KVSpec:
    """The cache of one block: `n_kv` heads, K of `head_dim_k` and V of `head_dim_v` values per head and token."""

    block: int
    n_kv: int
    head_dim_k: int
    head_dim_v: int


@dataclass(frozen=True, eq=False)
class Op:
    """One recorded operation. `out` is written, `args` are read; `params` are plain numbers and strings."""

    kind: str
    out: Any
    args: tuple[Any, ...] = ()
    params: dict[str, Any] = field(default_factory=dict)


class Recorder:
    """Collects the operations of a model, in order, out-first."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.buffers: list[Buffer] = []

    def buffer(self, name: str, width: int, rows: Rows = "tokens") -> Buffer:
        """A new buffer of float32 [rows][width]."""
        made = Buffer(name, width, rows)
        self.buffers.append(made)
        return made

    def _record(self, kind: str, out: Any, *args: Any, **params: Any) -> None:
        self.ops.append(Op(kind, out, args, params))

    def embed(self, out: Buffer, table: Weight, scale: float = 1.0) -> None:
        """out[t] = scale * table[token of t], dequantised."""
        self._record("embed", out, table, scale=scale)

    def angles(self, out: Angles) -> None:
        """Fills the rotary angles of this step's positions."""
        self._record("angles", out)

    def rmsnorm(self, out: Buffer, x: Buffer, weight: Vector | None, eps: float, add: Buffer | None = None) -> None:
        """out = x / sqrt(mean(x^2) + eps) * weight (+ add, after the norm). out may be add."""
        self._record("rmsnorm", out, x, weight, add, eps=eps)

    def matmul(
        self,
        out: Buffer,
        x: Buffer,
        w: Weight,
        bias: Vector | None = None,
        add: Buffer | None = None,
        precise: bool = False,
    ) -> None:
        """out = x @ w.T (+ bias) (+ add). out may be add. precise: a set that rounds x to int8 takes 15 bits of it,
        at the cost of a second column: for products of few rows whose errors nothing behind them averages."""
        self._record("matmul", out, x, w, bias, add, precise=precise)

    def head_norm(self, x: Buffer, head_dim: int, weight: Vector, eps: float) -> None:
        """In place: RMS norm of every head_dim-wide head of x."""
        self._record("head_norm", x, x, weight, head_dim=head_dim, eps=eps)

    def rope(self, x: Buffer, angles: Angles, head_dim: int, layout: str) -> None:
        """In place: rotates the first rot values of every head.

        Layout "norm" pairs (2i, 2i+1), "neox" pairs (i, i + rot / 2).
        """
        self._record("rope", x, x, angles, head_dim=head_dim, layout=layout)

    def store_kv(self, kv: KVSpec, k: Buffer, v: Buffer) -> None:
        """Writes this step's keys and values at their positions of the cache."""
        self._record("store_kv", kv, k, v)

    def attend(
        self, out: Buffer, q: Buffer, kv: KVSpec, n_head: int, scale: float, window: int = 0, softcap: float = 0.0
    ) -> None:
        """out[t, h] = softmax(cap(scale * q[t, h] . K)) V over the positions p of the token's sequence with p <= pos
        and, if window > 0, p > pos - window. cap(s) = softcap * tanh(s / softcap) if softcap > 0. Head h reads KV head
        h // (n_head / n_kv)."""
        self._record("attend", out, q, kv, n_head=n_head, scale=scale, window=window, softcap=softcap)

    def glu(self, out: Buffer, gate: Buffer, up: Buffer, act: str) -> None:
        """out = act(gate) * up; act is "silu" or "gelu_tanh"."""
        self._record("glu", out, gate, up, act=act)

    def add(self, out: Buffer, a: Buffer, b: Buffer) -> None:
        """out = a + b."""
        self._record("add", out, a, b)

    def scale(self, out: Buffer, x: Buffer, factor: float) -> None:
        """out = factor * x."""
        self._record("scale", out, x, factor=factor)

    def softcap(self, out: Buffer, x: Buffer, cap: float) -> None:
        """out = cap * tanh(x / cap)."""
        self._record("softcap", out, x, cap=cap)

    def select(self, out: Buffer, x: Buffer) -> None:
        """Gathers the rows whose logits were asked for: out ("outputs") from x ("tokens")."""
        self._record("select", out, x)

    def observe(self, name: str, x: Buffer, sums: np.ndarray | None = None) -> None:
        """Marks x as a point where an accumulator may look (importance matrix, debugging); no fusion across it.

        sums: float64 [width + 1], to which every step adds the squares of x's columns over the step's rows and, at the
        end, the number of rows. What a GPU has summed up arrives there when its part's `collect` is called.
        """
        self._record("observe", x, x, name=name, sums=sums)


@dataclass
class Batch:
    """What one step works on: n tokens of one or several sequences.

    tokens, positions, sequences: int32 [n]; outputs: int32 [m], rows of the step whose logits are wanted, ascending.
    `sequences` are indices of the set's page tables; `variants`, int32 [n] or None, choose between two rotary tables.
    """

    tokens: np.ndarray
    positions: np.ndarray
    sequences: np.ndarray
    outputs: np.ndarray
    variants: np.ndarray | None = None
