"""Generation: from a prompt's tokens to pieces of text, one token a piece.

The greedy path (temperature 0, nothing that changes logits) leaves the choice to the engine: Python sees an id and a
log-probability, never the whole vocabulary. What happens here for each token is counted by bench/python_overhead.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybridkern.errors import ContextError
from hybridkern.text import Detokenizer, Sampler, SamplingParams, StopMatcher

from .arguments import count
from .piece import FinishReason, Piece

if TYPE_CHECKING:
    from .model_api import Model
    from .session import Session


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
        return cls.checked(ids, model.vocabulary.end_ids, **options)

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
        stops = [stop] if isinstance(stop, str) else list(stop or ())
        StopMatcher(stops)
        return cls(
            ids,
            None if max_tokens is None else count("max_tokens", max_tokens, 0),
            stops,
            frozenset() if ignore_eos else end_ids,
            show_special,
            SamplingParams(**sampling),
        )


def generate(session: Session, request: Request) -> Iterator[Piece]:
    """Pieces until an end token, a stop string, `max_tokens` or the end of the context."""
    ids = request.ids
    # The last token of a full context needs no place in it: it is shown and not computed with.
    room = session.model.n_ctx - len(ids) + 1
    budget = room if request.max_tokens is None else min(request.max_tokens, room)
    asked = session.take_over()
    session.n_prompt = len(ids)
    if budget == 0:
        return
    step = _stepper(session, request)
    detokenizer = Detokenizer(
        session.model.vocabulary, skip_special=not request.show_special, previous=ids[-1] if ids else None
    )
    matcher = StopMatcher(request.stop)
    push, cut, end_ids = detokenizer.push, matcher.push, request.end_ids
    session.keep_prefix(ids, len(ids) - 1)
    tokens = ids[len(session.ids) :]
    for left in range(budget - 1, -1, -1):
        session.check(asked)
        token, logprob = step(tokens)
        reason: FinishReason | None = None
        if token in end_ids:
            text, reason = push(token) if request.show_special else "", "stop"
        else:
            text = push(token)
            if not left:
                reason = "length"
        text = cut(text)
        if reason is None and matcher.matched is None:
            yield Piece(text, token, logprob)
            tokens = [token]
            continue
        if matcher.matched is None:
            text += cut(detokenizer.flush())
        if matcher.matched is None:
            text += matcher.flush()
        else:
            reason = "stop"
        yield Piece(text, token, logprob, reason)
        return


def _stepper(session: Session, request: Request) -> Callable[[list[int]], tuple[int, float]]:
    """A function that appends tokens and chooses the next one."""
    params = request.sampling
    if params.greedy and not params.penalises and not params.logit_bias:
        return session.advance_greedy
    sampler = Sampler(params, session.model.n_vocab)
    for token in request.ids:
        sampler.accept(token)
    steps = itertools.count(1)

    def step(tokens: list[int]) -> tuple[int, float]:
        logits = session.advance(tokens, [len(tokens) - 1])[0]
        token, logprob = sampler.sample(logits, next(steps))
        sampler.accept(token)
        return token, logprob

    return step
