"""SPM vocabularies (`tokenizer.ggml.model` = "llama"): the real SentencePiece runs on a model built from the file.

SentencePiece: Kudo and Richardson 2018, https://arxiv.org/abs/1808.06226.
"""

from __future__ import annotations

import re

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as pb

from hybridkern.errors import TokenizerError
from hybridkern.text.fields import TokenType, VocabularyFields

SPACE = "\u2581"  # how SentencePiece writes a space: LOWER ONE EIGHTH BLOCK

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_PIECE = pb.ModelProto.SentencePiece
_NORMAL, _UNKNOWN, _CONTROL, _BYTE_PIECE = map(int, (_PIECE.NORMAL, _PIECE.UNKNOWN, _PIECE.CONTROL, _PIECE.BYTE))
_UNMATCHABLE = 0  # a token that no text leads to
# Control pieces are not found in a text. User-defined tokens are cut out of it before it comes here (SpecialMatcher),
# and the reference lets unused ones be found: both are ordinary pieces for the merges.
_KIND_OF_TYPE: dict[int, int] = {
    TokenType.UNDEFINED: _NORMAL,
    TokenType.NORMAL: _NORMAL,
    TokenType.UNKNOWN: _CONTROL,
    TokenType.CONTROL: _CONTROL,
    TokenType.USER_DEFINED: _NORMAL,
    TokenType.UNUSED: _NORMAL,
    TokenType.BYTE: _BYTE_PIECE,
}
_WRITTEN = (TokenType.NORMAL, TokenType.UNUSED, TokenType.UNDEFINED)  # U+2581 in these is a space


class SpmModel:
    """Encodes raw text (no special tokens in it) with an SPM vocabulary."""

    def __init__(self, fields: VocabularyFields) -> None:
        self._n_tokens = len(fields.tokens)
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(_model_proto(fields).SerializeToString())
        except RuntimeError as exc:
            raise TokenizerError(f"the SPM vocabulary cannot be used: {exc}") from exc

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        ids: list[int] = self._processor.EncodeAsIds(text)
        if self._n_tokens in ids:  # the stand-in of a vocabulary without an unknown token
            raise TokenizerError(
                "the text has characters that this vocabulary cannot express: no byte tokens, no unknown token"
            )
        return ids


def piece_bytes(texts: list[str], types: np.ndarray) -> list[bytes]:
    """The bytes for which each token stands in a text."""
    pieces = [text.encode("utf-8", "surrogateescape") for text in texts]
    space = SPACE.encode()
    for token, kind in enumerate(types.tolist()):
        if kind in _WRITTEN:
            if space in pieces[token]:
                pieces[token] = pieces[token].replace(space, b" ")
        elif kind == TokenType.BYTE and (match := _BYTE.match(texts[token])):
            pieces[token] = bytes([int(match[1], 16)])
    return pieces


def _model_proto(fields: VocabularyFields) -> pb.ModelProto:
    proto = pb.ModelProto()
    kinds = _piece_kinds(fields)
    add = proto.pieces.add
    assert fields.scores is not None
    for text, kind, score in zip(fields.tokens, kinds, fields.scores.tolist(), strict=True):
        piece = add()
        if kind == _UNMATCHABLE:
            piece.piece, piece.type = f"\U0010ffff{len(proto.pieces)}", _CONTROL
            continue
        piece.piece, piece.score = text, score
        if kind != _NORMAL:  # the default; a quarter of a million assignments take their time
            piece.type = kind
    if _UNKNOWN not in kinds:  # SentencePiece wants one: a stand-in behind all others
        kinds.append(_UNKNOWN)
        proto.pieces.add(piece="\U0010ffff", score=0.0, type=_UNKNOWN)
    trainer = proto.trainer_spec
    trainer.model_type = pb.TrainerSpec.BPE
    trainer.vocab_size = len(proto.pieces)
    trainer.byte_fallback = _BYTE_PIECE in kinds
    trainer.unk_id = kinds.index(_UNKNOWN)
    trainer.unk_piece = proto.pieces[trainer.unk_id].piece
    trainer.bos_id, trainer.eos_id, trainer.pad_id = -1, -1, -1
    # The file stores no normaliser, and the reference applies none. The leading space is added by the vocabulary,
    # once per stretch of raw text, so not here. (`remove_extra_whitespaces` is for tokenizers of another kind: the
    # reference ignores it here, and so does this.)
    normaliser = proto.normalizer_spec
    normaliser.name = "identity"
    normaliser.add_dummy_prefix = False
    normaliser.remove_extra_whitespaces = False
    normaliser.escape_whitespaces = True
    return proto


def _piece_kinds(fields: VocabularyFields) -> list[int]:
    """What each token is to SentencePiece."""
    kinds = [_KIND_OF_TYPE[type_] for type_ in fields.types.tolist()]
    unknown = fields.ids.get("unknown")
    if unknown is not None and kinds[unknown] == _CONTROL:  # SentencePiece knows a single unknown piece
        kinds[unknown] = _UNKNOWN
    # A text may occur only once, and the first id wins; the others must decode but never be found.
    seen: set[str] = set()
    for token, text in enumerate(fields.tokens):
        if text in seen or not text or "\0" in text or not (text.isascii() or _is_unicode(text)):
            kinds[token] = _UNMATCHABLE
        elif kinds[token] == _BYTE_PIECE and not _BYTE.match(text):
            kinds[token] = _NORMAL
        seen.add(text)
    if 0 < kinds.count(_BYTE_PIECE) < 256:  # SentencePiece wants all of them or none
        kinds = [_CONTROL if kind == _BYTE_PIECE else kind for kind in kinds]
    return kinds


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # the file's bytes were no UTF-8
        return False
    return True
