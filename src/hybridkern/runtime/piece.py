"""What generation yields: a piece of text that remembers the token it came from."""

from __future__ import annotations

from typing import Literal

FinishReason = Literal["stop", "length"]


class Piece(str):
    """The text that one token added, possibly empty: text is held back while half a character or a stop string is open.

    token_id       the token
    logprob        its natural log-probability under the model, before any sampling parameter
    finish_reason  None until the last piece; then "stop" (an end token or a stop string) or "length" (max_tokens
                   reached or the context full)
    """

    __slots__ = ("finish_reason", "logprob", "token_id")

    token_id: int
    logprob: float
    finish_reason: FinishReason | None

    def __new__(
        cls, text: str, token_id: int, logprob: float = 0.0, finish_reason: FinishReason | None = None
    ) -> Piece:
        """A piece of `text` that came from token `token_id`."""
        made = str.__new__(cls, text)
        made.token_id = token_id
        made.logprob = logprob
        made.finish_reason = finish_reason
        return made

    def __getnewargs__(self) -> tuple[str, int, float, FinishReason | None]:  # type: ignore[override]
        return str(self), self.token_id, self.logprob, self.finish_reason
