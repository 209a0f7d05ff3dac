"""What becomes of every tensor of a file: the type it gets, and why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hybridkern.errors import ArgumentError
from hybridkern.gguf import BY_NAME, SUPPORTED, GGUFFile, QuantType, TensorInfo

from .recipes import FALLBACKS, FLOATS, FileType, Place

_KIND = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
# Two-dimensional weights that are not matrices of products, or too small and too sensitive to be worth it.
_KEPT = re.compile(
    r"_norm\.weight$|ffn_gate_inp|altup|laurel|per_layer_model_proj|^(token_types|position_embd|pos_embd)\.|attn_rel_b"
    r"|ssm_conv1d|shortconv|time_mix|^rope_"
)
_70B_BLOCKS = 80


@dataclass(frozen=True)
class Wishes:
    """What the user wants besides a file type. rules: (regular expression, type), the first that is found in a tensor's
    name counts. output, embedding: the types of these two. pure: one type for all. keep_output: leave it as it is."""

    rules: Sequence[tuple[str, str]] = ()
    output: str | None = None
    embedding: str | None = None
    pure: bool = False
    keep_output: bool = False
    allow_requantize: bool = False


@dataclass(frozen=True)
class Target:
    """One tensor: what it is, the type it gets (its own: it is copied), and why it is not what the file type says."""

    info: TensorInfo
    type: QuantType
    reason: str = ""

    @property
    def copied(self) -> bool:
        """Whether the bytes of the file are taken over."""
        return self.type is self.info.type

    @property
    def nbytes(self) -> int:
        """Bytes in the new file."""
        return self.info.n_elements // self.info.shape[0] * self.type.row_bytes(self.info.shape[0])


def type_named(name: str, what: str) -> str:
    """The name of a type that can be written, in upper case. Raises ArgumentError, listing them."""
    from hybridkern.kernels.quantizing import WRITABLE

    if name.upper() not in WRITABLE:
        raise ArgumentError(f"{what}: {name!r} is not a type that can be written; there are {', '.join(WRITABLE)}")
    return name.upper()


def is_matrix(info: TensorInfo) -> bool:
    """Whether a file type has a say in a tensor: a matrix that is multiplied, or a table of embeddings."""
    return info.name.endswith(".weight") and sum(n > 1 for n in info.shape[1:]) > 0 and not _KEPT.search(info.name)


def _first(value: Any) -> int:
    """A count of heads: a number, or one per block."""
    return int(value if isinstance(value, int) else value[0]) if value is not None else 0


@dataclass
class _Chooser:
    """Knows the model, and which blocks have a tensor of a kind."""

    file: GGUFFile
    type: FileType
    wishes: Wishes
    importance: bool
    group: int = 1
    few_kv_heads: bool = False  # of a model as large as Llama 2 70B
    tied: bool = True
    blocks: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        m = self.file.metadata
        arch = m.get_str("general.architecture", "")
        heads = _first(m.get(f"{arch}.attention.head_count"))
        kv = _first(m.get(f"{arch}.attention.head_count_kv", heads))
        self.group = heads // kv if kv else 1
        blocks = m.get_int(f"{arch}.block_count", 0)
        self.few_kv_heads = arch in ("llama", "qwen2") and blocks == _70B_BLOCKS and self.group > 1
        self.tied = "output.weight" not in self.file.tensors
        found = sorted(place for name in self.file.tensors if (place := _kind(name)) is not None)
        for block, kind in found:
            self.blocks.setdefault(kind, []).append(block)

    def mixed(self, info: TensorInfo) -> str:
        """The type that the mix gives to a tensor."""
        base, name = self.type.base, info.name
        if base in FLOATS or self.wishes.pure:
            return base
        if name == "output.weight" or (name == "token_embd.weight" and self.tied):
            return "Q8_0" if base == "Q8_0" or info.shape[0] % BY_NAME["Q6_K"].block_size else "Q6_K"
        found = _kind(name)
        if found is None:
            return base
        block, kind = found
        having = self.blocks[kind]
        place = Place(having.index(block), len(having), self.group, self.importance)
        chosen = next((to for where, to in self.type.mix.get(kind, ()) if where(place)), base)
        return "Q5_K" if kind == "attn_v" and self.few_kv_heads and chosen in ("Q3_K", "Q4_K") else chosen

    def wished(self, info: TensorInfo) -> tuple[str, str]:
        """The type and, if it comes from a wish, which."""
        chosen, why = self.mixed(info), ""
        if info.name == "output.weight" and self.wishes.output:
            chosen, why = self.wishes.output, "--output-tensor-type"
        if info.name == "token_embd.weight" and self.wishes.embedding:
            chosen, why = self.wishes.embedding, "--token-embedding-type"
        for pattern, to in self.wishes.rules:
            if re.search(pattern, info.name):
                return to, f"--tensor-type {pattern}"
        return chosen, why


def _kind(name: str) -> tuple[int, str] | None:
    """Block and kind (attn_v, ffn_down, ...) of a tensor; Q, K and V in one matrix count as V, which needs most."""
    match = _KIND.fullmatch(name)
    return None if match is None else (int(match[1]), {"attn_qkv": "attn_v"}.get(match[2], match[2]))


def plan(file: GGUFFile, type: FileType, wishes: Wishes, importance: bool = False) -> list[Target]:
    """The targets of all tensors, in file order.

    Raises ArgumentError for a rule that is not a regular expression or finds nothing, and for a tensor that is
    quantised already unless that is allowed.
    """
    _check_rules(file, wishes)
    chooser = _Chooser(file, type, wishes, importance)
    return [_target(chooser, info) for info in file.tensors.values()]


def _target(chooser: _Chooser, info: TensorInfo) -> Target:
    if not is_matrix(info):
        return Target(info, info.type)
    if info.name == "output.weight" and chooser.wishes.keep_output:
        return Target(info, info.type, "--leave-output-tensor")
    wanted, reason = chooser.wished(info)
    cols, chosen = info.shape[0], wanted
    if cols % BY_NAME[chosen].block_size and chosen in FALLBACKS:
        chosen = FALLBACKS[chosen]
    if cols % BY_NAME[chosen].block_size:
        chosen = "F16"
    if chosen != wanted:
        block = BY_NAME[wanted].block_size
        fell = f"{chosen} in place of {wanted}: rows of {cols} are no multiple of {block}"
        reason = f"{reason}; {fell}" if reason else fell
    if chosen != info.type.name:
        _check_source(info, chooser.wishes)
    return Target(info, BY_NAME[chosen], reason)


def _check_source(info: TensorInfo, wishes: Wishes) -> None:
    if info.type not in SUPPORTED:
        names = ", ".join(t.name for t in sorted(SUPPORTED, key=lambda t: t.id))
        raise ArgumentError(f"tensor {info.name!r} has the type {info.type.name}, which cannot be read; {names} can")
    if info.type.name not in FLOATS and not wishes.allow_requantize:
        raise ArgumentError(
            f"tensor {info.name!r} is {info.type.name} already: quantising it again loses more than quantising the "
            "F16 or BF16 original; --allow-requantize does it all the same"
        )


def _check_rules(file: GGUFFile, wishes: Wishes) -> None:
    names = [name for name, info in file.tensors.items() if is_matrix(info)]
    for pattern, _ in wishes.rules:
        try:
            found = any(re.search(pattern, name) for name in names)
        except re.error as error:
            raise ArgumentError(f"--tensor-type: {pattern!r} is not a regular expression: {error}") from None
        if not found:
            raise ArgumentError(f"--tensor-type: {pattern!r} is found in none of the {len(names)} matrices of the file")
