"""A model's vocabulary: text to token ids and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hybridkern.errors import TokenizerError
from hybridkern.text import bpe, spm
from hybridkern.text.fields import SPECIAL_TYPES, TokenType, VocabularyFields
from hybridkern.text.special import END_TEXTS, SHOWN_TEXTS, SpecialMatcher, end_ids

_NO_STRIP = frozenset({"<unk>", "<s>", "<|endoftext|>"})


class Vocabulary:
    """The tokens of one model. Build it with `Vocabulary.from_metadata`; it never changes afterwards."""

    def __init__(self, fields: VocabularyFields) -> None:
        self.fields = fields
        self.tokens: list[str] = fields.tokens
        # The same string may be listed more than once: the first id wins when encoding, every id decodes.
        self._token_to_id: dict[str, int] = {}
        for token, text in enumerate(fields.tokens):
            self._token_to_id.setdefault(text, token)
        ids = fields.ids
        self.bos_id: int | None = ids.get("bos")
        self.eos_id: int | None = ids.get("eos")
        self.eot_id: int | None = ids.get("eot")
        self.unknown_id: int | None = ids.get("unknown")
        self.padding_id: int | None = ids.get("padding")
        self.add_bos = fields.add_bos
        self.add_eos = fields.add_eos
        self.add_space_prefix = fields.add_space_prefix
        self.chat_template = fields.chat_template
        named = [ids[role] for role in ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep") if role in ids]
        self.end_ids: frozenset[int] = end_ids(self._token_to_id, named)
        self.types = self._corrected_types()
        self._model: spm.SpmModel | bpe.BpeModel
        if fields.kind == "spm":
            self._model = spm.SpmModel(fields)
            self._pieces = spm.piece_bytes(self.tokens, self.types)
        else:
            self._model = bpe.BpeModel(fields, self._token_to_id)
            self._pieces = bpe.piece_bytes(self.tokens, self.types)
        self.hidden_ids = frozenset(np.flatnonzero(self._is(TokenType.CONTROL, TokenType.UNKNOWN)).tolist())
        self._shown_pieces = list(self._pieces)
        for token in self.hidden_ids:
            self._shown_pieces[token] = b""
        self._texts: dict[bool, list[str | None]] = {}
        self.special_ids = frozenset(np.flatnonzero(self._is(*SPECIAL_TYPES)).tolist())
        self._matchers = (
            self._matcher(np.flatnonzero(self._is(TokenType.USER_DEFINED)).tolist()),
            self._matcher(sorted(self.special_ids)),
        )

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> Vocabulary:
        """Build the vocabulary that a GGUF file's metadata describes (keys `tokenizer.*`, `general.name`)."""
        return cls(VocabularyFields.from_metadata(metadata))

    @property
    def kind(self) -> str:
        """Which model: "spm" or "bpe"."""
        return self.fields.kind

    @property
    def n_tokens(self) -> int:
        """How many tokens there are; the rows of the embedding must be as many."""
        return len(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def token_id(self, text: str) -> int | None:
        """The id of a token by its text in the file, the first one if there are several; None if there is none."""
        return self._token_to_id.get(text)

    def is_end(self, token: int) -> bool:
        """Does this token end a generation?"""
        return token in self.end_ids

    def is_hidden(self, token: int) -> bool:
        """Is this a control token, which `skip_special` leaves out of the text?"""
        return token in self.hidden_ids

    def piece_bytes(self, token: int) -> bytes:
        """The bytes for which a token stands, a special token's text included."""
        return self._pieces[self._checked(token)]

    def pieces(self, skip_special: bool) -> list[bytes]:
        """The bytes of every token; control tokens are empty with `skip_special`. Not to be changed."""
        return self._shown_pieces if skip_special else self._pieces

    def texts(self, skip_special: bool) -> list[str | None]:
        """The texts of those tokens that detokenisers have met and that are whole characters; they fill it in."""
        if skip_special not in self._texts:
            self._texts[skip_special] = [None] * len(self.tokens)
        return self._texts[skip_special]

    def encode(self, text: str, special: bool = False, bos: bool | None = None) -> list[int]:
        """Token ids of a text.

        With `special`, control tokens that stand in the text ("<|im_start|>") become tokens; otherwise they are text
        like any other. User-defined tokens always become tokens. `bos` says whether BOS is put in front; None means
        what the file says. EOS is put at the end only if the file says so and `bos` is None.
        """
        _check_text(text)
        ids: list[int] = []
        if self.add_bos if bos is None else bos:
            if self.bos_id is None:
                raise TokenizerError("the vocabulary has no BOS token (tokenizer.ggml.bos_token_id)")
            ids.append(self.bos_id)
        after_special = True  # the start of the text counts as one
        for part in self._matchers[special].split(text):
            if isinstance(part, int):
                ids.append(part)
                after_special = True
            else:
                # A leading space belongs to every stretch of raw text, as the reference does it.
                prefix = " " if self.add_space_prefix and after_special else ""
                ids += self._model.encode(prefix + part)
                after_special = False
        if bos is None and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD.

        The leading space that `encode` adds is taken away again, so that encoding and decoding give the text back.
        """
        pieces = self.pieces(skip_special)
        out = []
        after_special = self.add_space_prefix
        for token in ids:
            piece = pieces[self._checked(token)]
            if token in self.special_ids:
                after_special = self.add_space_prefix
            elif after_special:
                piece = piece.removeprefix(b" ")
                after_special = False
            out.append(piece)
        return b"".join(out).decode("utf-8", "replace")

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The texts of tokens as the file lists them, for messages."""
        return [self.tokens[self._checked(token)] for token in ids]

    def _checked(self, token: int) -> int:
        if not 0 <= token < len(self.tokens):
            raise TokenizerError(f"token id {token} is outside the vocabulary of {len(self.tokens)} tokens")
        return token

    def _is(self, *kinds: TokenType) -> np.ndarray:
        return np.isin(self.types, np.array(kinds, dtype=np.uint8))

    def _corrected_types(self) -> np.ndarray:
        """Token types, with the tokens put right that files commonly declare wrongly."""
        types = self.fields.types.copy()
        for text in END_TEXTS:
            token = self._token_to_id.get(text)
            if token is not None and token in self.end_ids and types[token] != TokenType.CONTROL:
                types[token] = TokenType.CONTROL
        for text in SHOWN_TEXTS:
            if text in self._token_to_id:
                types[self._token_to_id[text]] = TokenType.USER_DEFINED
        end = self._token_to_id.get("<|end|>")
        if end is not None and end not in self.end_ids:
            types[end] = TokenType.USER_DEFINED
        return types

    def _matcher(self, ids: list[int]) -> SpecialMatcher:
        texts = {self.tokens[i]: i for i in reversed(ids) if self.tokens[i]}  # reversed: the first id wins
        rstrip: list[int] = []
        name = self.fields.model_name.lower()
        if "phi-3" in name or "phi3" in name:
            # Phi-3's special tokens swallow the white space behind them; no GGUF key says so.
            rstrip = [i for text, i in texts.items() if text not in _NO_STRIP]
        return SpecialMatcher(texts, rstrip)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise TokenizerError(
            f"the text is not valid Unicode: a lone surrogate U+{ord(text[exc.start]):04X} at character {exc.start}"
        ) from exc
