"""SPM vocabularies (`tokenizer.ggml.model` = "llama"): the real SentencePiece runs on a model built from the file.

SentencePiece: Kudo and Richardson 2018, https://arxiv.org/abs/1808.06226.
"""

from __future__ import annotations

import re

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as pb

from hybridkern.errors import TokenizerError
from hybridkern.text.fields import TokenType, VocabularyFields

SPACE = "\u2581"  # how SentencePiece writes a space: LOWER ONE EIGHTH BLOCK

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_PIECE = pb.ModelProto.SentencePiece


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


def piece_bytes(text: str, kind: TokenType) -> bytes:
    """The bytes for which a token stands in a text."""
    if kind == TokenType.BYTE:
        match = _BYTE.match(text)
        if match:
            return bytes([int(match[1], 16)])
    if kind in (TokenType.NORMAL, TokenType.UNUSED, TokenType.UNDEFINED):
        text = text.replace(SPACE, " ")
    return text.encode("utf-8", "surrogatepass")


def _model_proto(fields: VocabularyFields) -> pb.ModelProto:
    proto = pb.ModelProto()
    scores = fields.scores
    assert scores is not None
    unknown = fields.ids.get("unknown", -1)
    # A piece text may occur only once, and the first id wins. The others must decode but never be found: they become
    # control pieces, which SentencePiece does not match in a text, under a name that no text contains.
    seen: set[str] = set()
    byte_tokens = 0
    columns = zip(fields.tokens, fields.types.tolist(), scores.tolist(), strict=True)
    for token, (text, kind, score) in enumerate(columns):
        if not text or text in seen or "\0" in text:
            text, kind = f"\0{token}", TokenType.CONTROL
        seen.add(text)
        piece = proto.pieces.add()
        piece.piece = text.encode("utf-8", "replace").decode()
        piece.score = score
        if token == unknown:
            piece.type = _PIECE.UNKNOWN
        elif kind in (TokenType.CONTROL, TokenType.UNKNOWN):
            piece.type = _PIECE.CONTROL
        elif kind == TokenType.BYTE and _BYTE.match(text):
            piece.type = _PIECE.BYTE
            byte_tokens += 1
        else:
            # User-defined tokens are cut out of the text before it comes here (SpecialMatcher), and the reference
            # lets unused ones be found: both are ordinary pieces for the merges.
            piece.type = _PIECE.NORMAL
    if unknown < 0:
        unknown = len(fields.tokens)
        proto.pieces.add(piece="\0unknown", score=0.0, type=_PIECE.UNKNOWN)
    if 0 < byte_tokens < 256:  # SentencePiece wants all of them or none
        for piece in proto.pieces:
            if piece.type == _PIECE.BYTE:
                piece.type = _PIECE.CONTROL
    trainer = proto.trainer_spec
    trainer.model_type = pb.TrainerSpec.BPE
    trainer.vocab_size = len(proto.pieces)
    trainer.byte_fallback = byte_tokens == 256
    trainer.unk_id, trainer.bos_id, trainer.eos_id, trainer.pad_id = unknown, -1, -1, -1
    trainer.unk_piece = proto.pieces[unknown].piece
    # The file stores no normaliser, and the reference applies none. The leading space is added by the vocabulary,
    # once per stretch of raw text, so not here.
    normaliser = proto.normalizer_spec
    normaliser.name = "identity"
    normaliser.add_dummy_prefix = False
    normaliser.remove_extra_whitespaces = False
    normaliser.escape_whitespaces = True
    return proto
