"""Streaming detokeniser: token ids in, text out, never half a character."""

from __future__ import annotations

import codecs

from hybridkern.text.vocabulary import Vocabulary

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Turns the tokens of one generation into text as they come.

    A character whose bytes are spread over several tokens appears with the last of them. Bytes that cannot become a
    character appear as U+FFFD at once, so a lone 0xFF does not stall the stream; an unfinished character at the end
    appears as U+FFFD from `flush`. The pieces joined are what `Vocabulary.decode` gives.

    `previous` is the token before the first one that is pushed (the last of the prompt), None at the start of a text.
    It decides whether a leading space of an SPM vocabulary was only added by the tokenizer and is taken away.
    """

    def __init__(self, vocabulary: Vocabulary, *, skip_special: bool = True, previous: int | None = None) -> None:
        self._pieces = vocabulary.pieces(skip_special)
        self._texts = vocabulary.texts(skip_special)
        self._special = vocabulary.special_ids
        self._strips = vocabulary.add_space_prefix
        self._after_special = self._strips and (previous is None or previous in self._special)
        self._decoder = _utf8_decoder("replace")
        self._unfinished = False  # the decoder holds the beginning of a character

    def push(self, token: int) -> str:
        """The text that this token completes; "" while a character is unfinished."""
        if self._strips:
            if token in self._special:
                self._after_special = True
            elif self._after_special:
                self._after_special = False
                return self._push_bytes(self._pieces[token].removeprefix(b" "))
        if self._unfinished:
            return self._push_bytes(self._pieces[token])
        text = self._texts[token]
        if text is None:
            piece = self._pieces[token]
            try:
                text = self._texts[token] = piece.decode()
            except UnicodeDecodeError:
                return self._push_bytes(piece)
        return text

    def _push_bytes(self, piece: bytes) -> str:
        text = self._decoder.decode(piece)
        self._unfinished = self._decoder.getstate()[0] != b""
        return text

    def flush(self) -> str:
        """What is still held, at the end of the generation. The detokeniser can then be used again."""
        self._unfinished = False
        return self._decoder.decode(b"", True)
