"""Chat templates: Jinja programs that come with a model, run in a sandbox.

A template is code from a file that somebody else wrote. What bounds it: Jinja's immutable sandbox (no private
attributes, no changes to the caller's objects, `range` up to 100,000), a time limit, a limit on the length of what it
writes, on repetition (`"x" * n`, `n ** m`) and on numbers passed to methods (`"x".ljust(n)`). Whatever goes wrong
inside becomes a TokenizerError.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError

from hybridkern.errors import ArgumentError, TokenizerError
from hybridkern.text.vocabulary import Vocabulary

Message = Mapping[str, Any]

TIME_LIMIT_S = 10.0
LENGTH_LIMIT = 32 << 20  # characters
_NUMBER_LIMIT = 1 << 20


class _TemplateRaised(jinja2.TemplateError):
    """The template called `raise_exception`."""


class _OutOfTime(Exception):
    """Thrown into the thread of a template that takes too long."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`, with which training templates mark the assistant's words: here only its content counts."""

    tags = {"generation"}  # noqa: RUF012 (the name and form are Jinja's)

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(side) if isinstance(side, (str, list, tuple)) else None for side in (left, right)]
        if operator == "*":
            for size, other in ((sizes[0], right), (sizes[1], left)):
                if size is not None and isinstance(other, int) and size * other > _NUMBER_LIMIT:
                    raise SecurityError(f"repetition of more than {_NUMBER_LIMIT} elements")
        small = all(isinstance(side, (int, float)) and abs(side) <= 1024 for side in (left, right))
        if operator == "**" and not small:
            raise SecurityError("power of a number above 1024")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, int) and value > _NUMBER_LIMIT for value in args):
            raise SecurityError(f"argument above {_NUMBER_LIMIT}")
        return super().call(context, obj, *args, **kwargs)


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
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as exc:
            line = f" at line {exc.lineno}" if isinstance(exc, jinja2.TemplateSyntaxError) else ""
            raise TokenizerError(f"the chat template is not valid{line}: {exc}") from exc

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
        """The text of a conversation. `variables` reach the template as they are (tools=..., enable_thinking=...)."""
        checked = _checked(messages)
        values = {"tools": None, "documents": None, **self._special, **variables}
        values |= {"messages": checked, "add_generation_prompt": add_generation_prompt}

        def write() -> str:
            parts, length = [], 0
            for part in self._template.generate(values):
                parts.append(part)
                length += len(part)
                if length > LENGTH_LIMIT:
                    raise SecurityError(f"more than {LENGTH_LIMIT} characters")
            return "".join(parts)

        try:
            return _within(self._time_limit_s, write)
        except _TemplateRaised as exc:
            raise TokenizerError(f"the chat template refuses these messages: {exc}") from exc
        except _OutOfTime:
            raise TokenizerError(f"the chat template did not end within {self._time_limit_s:g} s") from None
        except Exception as exc:  # a template can fail in any way that Python can
            raise TokenizerError(f"the chat template failed: {type(exc).__name__}: {exc}") from exc

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


def _environment() -> _Sandbox:
    # The settings with which templates are written: those of Hugging Face's `apply_chat_template`.
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation], cache_size=0
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


def _raise_exception(message: object) -> None:
    raise _TemplateRaised(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is: Jinja's own filter escapes `<`, `>`, `&` and `'` for HTML, which the models never saw."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


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


def _within(seconds: float, work: Callable[[], str]) -> str:
    """Run `work` in a thread and throw _OutOfTime into it when the time is over.

    Python looks for such an exception between two bytecodes, and a compiled template is Python: no loop escapes it.
    """
    result: list[str] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as exc:  # handed to the caller
            failure.append(exc)

    thread = threading.Thread(target=run, name="chat-template", daemon=True)
    thread.start()
    try:
        thread.join(seconds)
    finally:  # also when Ctrl-C ends the wait
        overdue = thread.is_alive()
        if overdue:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_OutOfTime))
    if overdue:
        thread.join(1.0)
        raise _OutOfTime
    if failure:
        raise failure[0]
    return result[0]
