"""Generation: from a prompt's tokens to pieces of text, one token a piece.

The greedy path (temperature 0, nothing that changes logits) leaves the choice to the engine: Python sees an id and a
log-probability, never the whole vocabulary. bench/python_overhead.py says what a token costs here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from hybridkern.errors import ContextError
from hybridkern.text import Detokenizer, Sampler, SamplingParams, StopMatcher
from hybridkern.text.stop import stop_strings

from .arguments import count
from .piece import Piece

if TYPE_CHECKING:
    from .model_api import Model
    from .session import Session

Made = tuple[int, float]  # a token and its log-probability
_SAMPLING = tuple(field.name for field in fields(SamplingParams))


@dataclass(frozen=True)
class Request:
    """What was asked for, checked. `ids`: the prompt; `max_tokens`: None for no limit but the context."""

    ids: list[int]
    max_tokens: int | None
    stop: Sequence[str]
    end_ids: frozenset[int]
    show_special: bool
    sampling: SamplingParams

    @classmethod
    def of(cls, model: Model, ids: list[int], **options: Any) -> Request:
        """Check the arguments of `Model.generate`."""
        if len(ids) > model.n_ctx:
            raise ContextError(f"the prompt has {len(ids)} tokens, but the context holds {model.n_ctx} (n_ctx)")
        request = cls.checked(ids, model.vocabulary.end_ids, **options)
        request.sampling.check_vocabulary(model.n_vocab)
        return request

    @classmethod
    def checked(
        cls,
        ids: list[int],
        end_ids: frozenset[int],
        *,
        max_tokens: int | None = 64,
        stop: str | Sequence[str] | None = None,
        ignore_eos: bool = False,
        show_special: bool = False,
        **sampling: Any,
    ) -> Request:
        """Check what can be checked without a model."""
        if sampling.get("logit_bias", 0) is None:
            del sampling["logit_bias"]
        for name in sampling:
            if name not in _SAMPLING:
                raise TypeError(
                    f"unexpected keyword argument {name!r}; there are max_tokens, stop, ignore_eos, show_special, "
                    + ", ".join(_SAMPLING)
                )
        return cls(
            ids,
            None if max_tokens is None else count("max_tokens", max_tokens, 0),
            stop_strings(stop),
            frozenset() if ignore_eos else end_ids,
            show_special,
            SamplingParams(**sampling),
        )


def generate(model: Model, request: Request, session: Session | None = None) -> Iterator[Piece]:
    """Pieces until an end token, a stop string, `max_tokens` or the end of the context. Without `session` on a
    sequence of its own.

    The loop is short on purpose. It runs behind a step that has streamed all weights through the caches, so every
    function and every object that it touches comes from memory.
    """
    own = session is None
    session = model.session() if session is None else session
    try:
        ids, end_ids = request.ids, request.end_ids
        # The last token of a full context needs no place in it: it is shown and not computed with.
        room = model.n_ctx - len(ids) + 1
        left = room if request.max_tokens is None else min(request.max_tokens, room)
        asked = session.take_over()
        session.n_prompt = len(ids)
        if left == 0:
            return
        step, careful_step = _steps(session, request)
        detokenizer = Detokenizer(
            model.vocabulary, skip_special=not request.show_special, previous=ids[-1] if ids else None
        )
        stops = StopMatcher(request.stop) if request.stop else None
        push, make = detokenizer.push, str.__new__
        session.keep_prefix(ids, len(ids) - 1)
        token, logprob = careful_step(ids[len(session.ids) :])
        while True:
            left -= 1
            if token in end_ids:
                text = push(token) if request.show_special else ""
                break
            text = push(token)
            if stops is not None:
                text = stops.push(text)
            if not left or (stops is not None and stops.matched is not None):
                break
            piece = make(Piece, text)  # Piece(text, token, logprob), without the call in between
            piece.token_id, piece.logprob, piece.finish_reason = token, logprob, None
            yield piece
            found = step(token)
            if found is None:
                session.check(asked)
                found = careful_step([token])
            token, logprob = found
        session.check_file()
        yield _last(request, token, logprob, text, detokenizer, stops)
    finally:
        if own:
            session.close()


def _last(
    request: Request, token: int, logprob: float, text: str, detokenizer: Detokenizer, stops: StopMatcher | None
) -> Piece:
    """The last piece: `text`, and what was held back."""
    ended = token in request.end_ids
    if stops is None:
        return Piece(text + detokenizer.flush(), token, logprob, "stop" if ended else "length")
    if ended:
        text = stops.push(text)
    if stops.matched is None:
        text += stops.push(detokenizer.flush())
    if stops.matched is None:
        text += stops.flush()
    return Piece(text, token, logprob, "stop" if ended or stops.matched is not None else "length")


def _steps(session: Session, request: Request) -> tuple[Callable[[int], Made | None], Callable[[list[int]], Made]]:
    """Two functions that append to the sequence and choose the next token: one for a single token, which may decline
    by None, and one for any number."""
    params = request.sampling
    if params.greedy and not params.penalises and not params.logit_bias:
        return session.next_greedy, session.advance_greedy
    sampler = Sampler(params, session.model.n_vocab)
    for token in request.ids:
        sampler.accept(token)
    steps = itertools.count(1)
    few = sampler.n_candidates <= session.model.engine.n_top and sampler.n_candidates > 0

    def step(tokens: list[int]) -> Made:
        if few and len(tokens) == 1:
            next(steps)
            return sampler.sample_among(*session.advance_top(tokens[0]))
        logits = session.advance(tokens, [len(tokens) - 1])[0]
        token, logprob = sampler.sample(logits, next(steps))
        sampler.accept(token)
        return token, logprob

    return lambda token: None, step
