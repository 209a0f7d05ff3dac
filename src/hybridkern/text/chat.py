"""Chat templates: Jinja programs that come with a model, run in a process of their own (`sandbox.py`).

A template is code from a file that somebody else wrote: it gets plain data, a limited time, limited memory and a
limited length. Whatever goes wrong inside becomes a TokenizerError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybridkern.errors import ArgumentError, TokenizerError
from hybridkern.text.rendering import RENDERER, plain
from hybridkern.text.vocabulary import Vocabulary

Message = Mapping[str, Any]

TIME_LIMIT_S = 10.0


class ChatTemplate:
    """Turns messages into the text, or the token ids, that a model was trained on."""

    def __init__(self, source: str, vocabulary: Vocabulary, *, time_limit_s: float = TIME_LIMIT_S) -> None:
        self._vocabulary = vocabulary
        self._time_limit_s = time_limit_s
        self._special = {
            f"{role}_token": "" if token is None else vocabulary.tokens[token]
            for role, token in (
                ("bos", vocabulary.bos_id),
                ("eos", vocabulary.eos_id),
                ("unk", vocabulary.unknown_id),
                ("pad", vocabulary.padding_id),
            )
        }
        try:
            source.encode()
        except UnicodeEncodeError as exc:
            raise TokenizerError(f"the chat template is not valid: no UTF-8 at character {exc.start}") from exc
        self._source = source
        RENDERER.ask(source, None, time_limit_s)

    @classmethod
    def of(cls, vocabulary: Vocabulary, source: str | None = None) -> ChatTemplate:
        """The template that the caller passed, or else the one in the model's file."""
        source = source if source is not None else vocabulary.chat_template
        if source is None:
            raise TokenizerError(
                "the file holds no chat template (tokenizer.chat_template), as base models do not: give a plain "
                "prompt, or pass a template (--chat-template, in Python template=)"
            )
        return cls(source, vocabulary)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The text of a conversation.

        `variables` reach the template too (tools=..., enable_thinking=...); ArgumentError where they are anything but
        strings, numbers, lists and dicts.
        """
        values = {"tools": None, "documents": None, **self._special, **plain(variables, "template_variables")}
        values |= {"messages": plain(_checked(messages), "messages"), "add_generation_prompt": add_generation_prompt}
        return RENDERER.ask(self._source, values, self._time_limit_s)

    def encode_chat(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """The token ids of a conversation, with exactly one BOS where template and tokenizer both put one.

        The whole text is parsed for special tokens, those in a message's content included.
        """
        text = self.render(messages, add_generation_prompt, **variables)
        bos = self._vocabulary.bos_id
        ids = self._vocabulary.encode(text, special=True)
        while bos is not None and len(ids) > 1 and ids[0] == ids[1] == bos:
            del ids[0]
        return ids


def _checked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise ArgumentError(f"messages must be a list of dicts with role and content, not {type(messages).__name__}")
    if not messages:
        raise ArgumentError("messages is empty: a chat needs at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ArgumentError(f"messages[{index}] must be a dict with role and content, not {type(message).__name__}")
        if not isinstance(message.get("role"), str):
            raise ArgumentError(f"messages[{index}] has no role (a string such as 'user', 'assistant', 'system')")
        # A message that calls tools has no content of its own.
        content_needed = not message.get("tool_calls")
        if content_needed and not isinstance(message.get("content"), (str, list)):
            raise ArgumentError(f"messages[{index}] has no content (a string, or a list of parts)")
    return [dict(message) for message in messages]
