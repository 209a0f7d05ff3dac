"""The tokenizer keys of a GGUF file, checked once and frozen.

A vocabulary comes from a file that somebody else wrote. Everything that can be wrong with it is found here and
named by its metadata key, so that the tokenizers behind it work on data they can trust.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from numbers import Integral

import numpy as np

from hybridkern.errors import TokenizerError
from hybridkern.gguf.cursor import shown


class TokenizerWarning(UserWarning):
    """Something in the file's vocabulary is doubtful and the text may come out worse than it should."""


class TokenType(IntEnum):
    """The values of `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


#: Tokens of these types are written in a text as the file lists them.
SPECIAL_TYPES = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)

# `tokenizer.ggml.model` -> what it is called in this package.
MODELS = {"llama": "spm", "gpt2": "bpe"}

# Pre-tokenizers whose vocabularies add BOS when the file does not say (`add_bos_token` is missing).
_ADDS_BOS = {
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "tekken",
}  # fmt: skip

# Files converted from SentencePiece models of the Llama family leave these ids out when they are the usual ones.
_SPM_DEFAULT_IDS = {"bos": 1, "eos": 2, "unknown": 0}

_ID_KEYS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "eot": "eot_token_id",
    "eom": "eom_token_id",
    "unknown": "unknown_token_id",
    "padding": "padding_token_id",
    "fim_pad": "fim_pad_token_id",
    "fim_rep": "fim_rep_token_id",
    "fim_sep": "fim_sep_token_id",
}


@dataclass(frozen=True)
class VocabularyFields:
    """What a file says about its vocabulary, validated."""

    kind: str  # "spm" or "bpe"
    tokens: list[str]
    types: np.ndarray  # uint8, (n_tokens,)
    scores: np.ndarray | None  # float32, (n_tokens,); SPM only
    merges: list[tuple[str, str]]  # BPE only, best first
    pre: str | None  # the name of the pre-tokenizer
    ids: dict[str, int] = field(default_factory=dict)  # role -> token id, only those that exist
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False
    chat_template: str | None = None
    model_name: str = ""

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> VocabularyFields:
        """Read and check the `tokenizer.*` keys of a file's metadata."""
        model = _text(metadata, "tokenizer.ggml.model")
        if model not in MODELS:
            known = ", ".join(sorted(MODELS))
            said = "is missing" if model is None else f"is {shown(model)}, which this version does not know"
            raise TokenizerError(f"tokenizer.ggml.model {said}; known models: {known}")
        kind = MODELS[model]
        tokens = _strings(metadata, "tokenizer.ggml.tokens")
        if not tokens:
            raise TokenizerError("tokenizer.ggml.tokens is empty")
        pre = _text(metadata, "tokenizer.ggml.pre")
        ids = _special_ids(metadata, len(tokens), kind)
        spm = kind == "spm"
        add_bos = _flag(metadata, "add_bos_token", spm or pre in _ADDS_BOS)
        add_eos = _flag(metadata, "add_eos_token", False)
        for wanted, role in ((add_bos, "bos"), (add_eos, "eos")):
            if wanted and role not in ids:
                _warn(f"tokenizer.ggml.add_{role}_token is set, but the file names no such token: none is added")
        return cls(
            kind=kind,
            tokens=tokens,
            types=_types(metadata, len(tokens)),
            scores=_scores(metadata, len(tokens)) if spm else None,
            merges=[] if spm else _merges(metadata),
            pre=pre,
            ids=ids,
            add_bos=add_bos and "bos" in ids,
            add_eos=add_eos and "eos" in ids,
            add_space_prefix=spm and _flag(metadata, "add_space_prefix", True),
            chat_template=_text(metadata, "tokenizer.chat_template"),
            model_name=_text(metadata, "general.name") or "",
        )


def _warn(message: str) -> None:
    warnings.warn(message, TokenizerWarning, stacklevel=2)


def _wrong(key: str, value: object, wanted: str) -> TokenizerError:
    said = shown(value) if isinstance(value, str) else f"of type {type(value).__name__}"
    return TokenizerError(f"{key} is {said}, but {wanted} is wanted")


def _text(metadata: Mapping[str, object], key: str) -> str | None:
    value = metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise _wrong(key, value, "a string")
    return value


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    value = metadata.get(key)
    if value is None:
        raise TokenizerError(f"{key} is missing: the file holds no vocabulary that can be used")
    if isinstance(value, np.ndarray) and not value.size:
        return []
    if not isinstance(value, (list, tuple)):
        raise _wrong(key, value, "an array of strings")
    for index, item in enumerate(value):
        if not isinstance(item, str):
            raise TokenizerError(f"{key}[{index}] is {type(item).__name__}, not a string")
    return list(value)


def _numbers(metadata: Mapping[str, object], key: str, n_tokens: int) -> np.ndarray | None:
    """A numeric array with at least one entry per token, or None where the file has none."""
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, (list, tuple, np.ndarray)):
        raise _wrong(key, value, "an array of numbers")
    try:
        array = np.asarray(value)
    except ValueError as exc:  # arrays of several lengths
        raise TokenizerError(f"{key} is not an array of numbers") from exc
    if array.dtype.kind not in "iuf" or array.ndim != 1:
        raise TokenizerError(f"{key} is not an array of numbers")
    if len(array) < n_tokens:
        raise TokenizerError(f"{key} has {len(array)} entries for {n_tokens} tokens")
    return array[:n_tokens].astype(np.float64)


def _scores(metadata: Mapping[str, object], n_tokens: int) -> np.ndarray:
    key = "tokenizer.ggml.scores"
    scores = _numbers(metadata, key, n_tokens)
    if scores is None:
        raise TokenizerError(f"{key} is missing: an SPM vocabulary cannot be used without scores")
    if np.isnan(scores).any():
        raise TokenizerError(f"{key}[{int(np.argmax(np.isnan(scores)))}] is NaN")
    return scores.astype(np.float32)


def _types(metadata: Mapping[str, object], n_tokens: int) -> np.ndarray:
    types = _numbers(metadata, "tokenizer.ggml.token_type", n_tokens)
    if types is None:
        return np.full(n_tokens, TokenType.NORMAL, dtype=np.uint8)
    bad = np.flatnonzero(~((types >= 0) & (types <= max(TokenType))))  # NaN too
    if bad.size:
        at = bad[0]
        raise TokenizerError(f"tokenizer.ggml.token_type[{at}] is {types[at]:g}, allowed are 0 to {max(TokenType)}")
    return types.astype(np.uint8)


def _merges(metadata: Mapping[str, object]) -> list[tuple[str, str]]:
    key = "tokenizer.ggml.merges"
    if metadata.get(key) is None:
        raise TokenizerError(f"{key} is missing: a byte-level BPE vocabulary cannot be used without merges")
    merges = []
    for index, line in enumerate(_strings(metadata, key)):
        # The space that separates the two parts cannot be the first character: a part is never empty.
        space = line.find(" ", 1)
        if space < 0 or space == len(line) - 1:
            raise TokenizerError(f"{key}[{index}] is {shown(line)}, not two parts with a space between them")
        merges.append((line[:space], line[space + 1 :]))
    return merges


def _special_ids(metadata: Mapping[str, object], n_tokens: int, kind: str) -> dict[str, int]:
    ids = {role: i for role, i in _SPM_DEFAULT_IDS.items() if i < n_tokens} if kind == "spm" else {}
    for role, name in _ID_KEYS.items():
        key = f"tokenizer.ggml.{name}"
        value = metadata.get(key)
        if value is None:
            continue
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise _wrong(key, value, "a token id")
        if 0 <= value < n_tokens:
            ids[role] = int(value)
        else:
            # Some converters write -1 for "none".
            _warn(f"{key} is {value}, outside the vocabulary of {n_tokens} tokens: ignored")
    return ids


def _flag(metadata: Mapping[str, object], name: str, default: bool) -> bool:
    key = f"tokenizer.ggml.{name}"
    value = metadata.get(key)
    if value is None:
        return default
    if not isinstance(value, (bool, Integral)):
        raise _wrong(key, value, "a bool")
    return bool(value)
