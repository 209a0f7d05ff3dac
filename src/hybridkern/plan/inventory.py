"""What there is to place: the matrices of a model, each with its role, and the caches of its blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from hybridkern.kernels.interface import Weight
from hybridkern.model import BlockWeights, LoadedModel

Role = Literal["attention", "ffn", "embedding", "head"]
_ATTENTION, _FFN = ("q", "k", "v", "qkv", "out"), ("gate", "up", "gate_up", "down")
EMBEDDING = "token_embd.weight"


@dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix of the file. block: None for the embedding and the head."""

    weight: Weight
    role: Role
    block: int | None = None

    @property
    def name(self) -> str:
        """Of its tensor."""
        return self.weight.name

    @property
    def file_bytes(self) -> int:
        """As it lies in the file."""
        return int(self.weight.data.nbytes)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of a product with one column."""
        return self.weight.rows * self.weight.cols


@dataclass(frozen=True, eq=False)
class Block:
    """One block: its matrices in the order of a step, and what its attention reads."""

    index: int
    matrices: tuple[Matrix, ...]
    n_head: int
    n_kv: int
    dim_k: int
    dim_v: int
    window: int

    def of(self, role: Role) -> list[Matrix]:
        """Its matrices of a role."""
        return [m for m in self.matrices if m.role == role]

    def cache_bytes(self, tokens: int, kv_type: str) -> float:
        """Bytes of the cache that a token reads which sees so many tokens."""
        seen = min(tokens, self.window) if self.window else tokens
        value = {"f32": 4.0, "f16": 2.0, "q8_0": 1 + 2 / 32, "q4_0": 0.5 + 2 / 32}[kv_type]
        return seen * self.n_kv * (self.dim_k + self.dim_v) * value


@dataclass(frozen=True, eq=False)
class Inventory:
    """All of a model. head: of the product that makes logits, the embedding's tensor where the two are tied."""

    blocks: tuple[Block, ...]
    embedding: Matrix
    head: Matrix
    n_embd: int
    n_vocab: int

    @classmethod
    def of(cls, model: LoadedModel) -> Inventory:
        """Of a model whose weights are bound; no data are read."""
        w, config = model.weights, model.config
        dims = config.head_dim_k, config.head_dim_v
        blocks = tuple(
            Block(i, tuple(_matrices(i, b)), c.n_head, c.n_head_kv, *dims, c.window)
            for i, (b, c) in enumerate(zip(w.blocks, config.blocks, strict=True))
        )
        return cls(blocks, Matrix(w.embedding, "embedding"), Matrix(w.output, "head"), config.n_embd, config.n_vocab)

    @property
    def tied(self) -> bool:
        """Whether head and embedding are one tensor."""
        return self.head.weight is self.embedding.weight

    def matrices(self) -> Iterator[Matrix]:
        """Of the blocks, in the order of a step."""
        for b in self.blocks:
            yield from b.matrices

    def names(self) -> list[str]:
        """Of every tensor that a rule can name, each once."""
        head = [] if self.tied else [self.head.name]
        return [self.embedding.name, *(m.name for m in self.matrices()), *head]


def _matrices(i: int, b: BlockWeights) -> Iterator[Matrix]:
    for names, role in ((_ATTENTION, "attention"), (_FFN, "ffn")):
        for name in names:
            w = getattr(b, name)
            if w is not None:
                yield Matrix(w, role, i)  # type: ignore[arg-type]
