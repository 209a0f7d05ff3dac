"""A conversation at the terminal: the user's lines in, the model's answers out.

Ctrl-C stops an answer and keeps what was said; at the prompt it ends the conversation, as Ctrl-D does.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from hybridkern.errors import ArgumentError, ContextError, TokenizerError

from .generate import generation_arguments
from .terminal import note, write
from .timing import Clock, timings
from .values import unescape

if TYPE_CHECKING:
    from hybridkern import Model, Session


def converse(args: argparse.Namespace, model: Model, first: str | None, clock: Clock) -> int:
    """Take turns until the input ends."""
    messages = []
    if args.system is not None:
        messages.append({"role": "system", "content": unescape(args.system) if args.escape else args.system})
    turn = _Turn(args, model, clock)
    if first is None and sys.stdin.isatty():
        note("type a message; Ctrl-C stops an answer, Ctrl-D ends the conversation")
    try:
        while (text := first if first is not None else _ask()) is not None:
            first = None
            if not text.strip():
                continue
            messages.append({"role": "user", "content": text})
            if not turn.answer(messages):
                messages.pop()
            if args.single_turn:
                break
    finally:
        turn.session.close()
    note(timings(clock, turn.n_prompt, turn.n_made, turn.n_answers))
    return 0


class _Turn:
    def __init__(self, args: argparse.Namespace, model: Model, clock: Clock) -> None:
        self.options = generation_arguments(args)
        template = args.chat_template
        if args.chat_template_file:
            try:
                with open(args.chat_template_file, encoding="utf-8") as source:
                    template = source.read()
            except (OSError, UnicodeDecodeError) as error:
                raise ArgumentError(f"--chat-template-file: {error}") from error
        self.options["template"] = template
        self.single = args.single_turn
        self.session: Session = model.session()
        self.clock = clock
        self.n_prompt = self.n_made = self.n_answers = 0

    def answer(self, messages: list[dict[str, str]]) -> bool:
        """One answer, added to `messages`; False when there was none."""
        self.clock.restart()
        said: list[str] = []
        reason = None
        before = len(self.session.ids)
        try:
            for piece in self.session.chat(messages, **self.options):
                if not said:
                    self.clock.lap("prompt")
                    self.n_prompt += max(0, self.session.n_prompt - before)
                    self.n_answers += 1
                said.append(piece)
                write(piece)
                reason = piece.finish_reason
        except KeyboardInterrupt:
            if self.single or not sys.stdin.isatty():
                raise
            note("stopped")
        except (ContextError, TokenizerError) as error:
            if self.single or not sys.stdin.isatty():
                raise
            note(f"error: {error}")
        self.clock.lap("decode")
        self.n_made += len(said)
        write("\n")
        if reason == "length":
            note("the answer was cut: -n or the context is exhausted")
        messages.append({"role": "assistant", "content": "".join(said)})
        if not said:
            messages.pop()
        return bool(said)


def _ask() -> str | None:
    """The next line, or None at the end of the input."""
    if sys.stdin.isatty():
        sys.stderr.write("> ")
        sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        return None
    return line.rstrip("\n")
