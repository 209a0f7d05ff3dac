"""Byte-level BPE vocabularies (`tokenizer.ggml.model` = "gpt2"), run by the `tokenizers` library.

Byte-pair encoding of text: Sennrich et al. 2016, https://arxiv.org/abs/1508.07909. The byte-level alphabet, in which
every byte is written as one printable character, comes with GPT-2 (Radford et al. 2019).
"""

from __future__ import annotations

import warnings

import numpy as np
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from hybridkern.errors import TokenizerError
from hybridkern.gguf.cursor import shown
from hybridkern.text.fields import SPECIAL_TYPES, TokenizerWarning, VocabularyFields
from hybridkern.text.pretokenizers import DEFAULT, PRE_TOKENIZERS, PreTokenizer


def _byte_alphabet() -> dict[str, int]:
    """Printable Latin-1 bytes stand for themselves; the other 68 take the code points from 256 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHAR = _byte_alphabet()
CHAR_OF_BYTE = {byte: char for char, byte in BYTE_OF_CHAR.items()}
# These never occur in UTF-8, and several published vocabularies leave them out.
_NOT_IN_UTF8 = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})


class BpeModel:
    """Encodes raw text (no special tokens in it) with a byte-level BPE vocabulary."""

    def __init__(self, fields: VocabularyFields, token_to_id: dict[str, int]) -> None:
        pre = pre_tokenizer(fields.pre)
        # The library takes only tokens that are valid UTF-8; no text leads to the others. It refuses a merge of which
        # a part or the result is no token; the reference would never reach a token through it either.
        known = {text: token for text, token in token_to_id.items() if text.isascii() or _is_unicode(text)}
        merges = [(a, b) for a, b in fields.merges if a in known and b in known and a + b in known]
        if len(merges) < len(fields.merges):
            warnings.warn(
                f"{len(fields.merges) - len(merges)} of {len(fields.merges)} merges name no token: left out",
                TokenizerWarning,
                stacklevel=3,
            )
        self._tokenizer = Tokenizer(models.BPE(vocab=known, merges=merges, ignore_merges=pre.ignore_merges))
        self._tokenizer.pre_tokenizer = cutter(pre)
        self._missing = {b for b in range(256) if CHAR_OF_BYTE[b] not in token_to_id} - _NOT_IN_UTF8

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        if self._missing:  # the library would drop such bytes in silence
            lost = self._missing.intersection(text.encode())
            if lost:
                raise TokenizerError(f"the vocabulary has no token for byte 0x{min(lost):02X} of the text")
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def words(self, text: str) -> list[str]:
        """The words into which the pre-tokenizer cuts a text (for tests and for curious people)."""
        return [text[a:b] for _, (a, b) in self._tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def cutter(pre: PreTokenizer) -> pre_tokenizers.PreTokenizer:
    """A pre-tokenizer in the form of the library."""
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def pre_tokenizer(name: str | None) -> PreTokenizer:
    """The pre-tokenizer of that name; the default one, with a warning, where the name is missing or unknown."""
    if name is not None and name in PRE_TOKENIZERS:
        return PRE_TOKENIZERS[name]
    said = "is missing" if name is None else f"is {shown(name)}, which this version does not know"
    warnings.warn(
        f"tokenizer.ggml.pre {said}: the default pre-tokenizer is used, and the text will come out worse if the model "
        f"was trained with another. Known names: {', '.join(sorted(PRE_TOKENIZERS))}",
        TokenizerWarning,
        stacklevel=3,
    )
    return DEFAULT


def piece_bytes(texts: list[str], types: np.ndarray) -> list[bytes]:
    """The bytes for which each token stands in a text."""
    to_latin1 = {ord(char): byte for char, byte in BYTE_OF_CHAR.items()}
    return [
        text.encode("utf-8", "surrogateescape") if kind in SPECIAL_TYPES else _bytes_of(text, to_latin1)
        for text, kind in zip(texts, types.tolist(), strict=True)
    ]


def _bytes_of(text: str, to_latin1: dict[int, int]) -> bytes:
    try:
        return text.translate(to_latin1).encode("latin-1")
    except UnicodeEncodeError:  # an added token written in plain text, although the file calls it normal
        return b"".join(
            bytes([BYTE_OF_CHAR[c]]) if c in BYTE_OF_CHAR else c.encode("utf-8", "surrogateescape") for c in text
        )
