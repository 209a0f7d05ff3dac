"""The process in which chat templates run: Jinja's sandbox, and around it what only a process can bound.

A template is a program from a file that somebody else wrote. Jinja's immutable sandbox keeps it from private attributes
and the caller's objects, but one operation of it may still take all memory, or hours in C code that no other thread can
interrupt: `'%999999999d' % 1`, a list that holds itself twice forty times over, a number squared in a loop. So it runs
here, with limits that the system keeps, and `rendering.py` ends the process that takes too long.

This file is run by an interpreter of its own and imports nothing of the package. It reads requests from descriptor 0,
each 32 bits of length and a marshalled (source, values or None), and answers on 1 with a status, a length and UTF-8.
"""

from __future__ import annotations

import datetime
import json
import marshal
import os
import resource
import signal
import struct
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY_LIMIT = 1 << 30  # bytes of address space
LENGTH_LIMIT = 32 << 20  # characters of a rendered text
READY, OK, INVALID, REFUSED, FAILED, MEMORY = b"+", b"k", b"i", b"r", b"f", b"m"
HEADER = struct.Struct("<cI")
LENGTH = struct.Struct("<I")
_LONGEST_MESSAGE = 2000


class _TemplateRaised(jinja2.TemplateError):
    """The template called `raise_exception`."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`, with which training templates mark the assistant's words: here only its content counts."""

    tags = {"generation"}  # noqa: RUF012 (the name and form are Jinja's)

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def environment() -> ImmutableSandboxedEnvironment:
    """The settings with which templates are written: those of Hugging Face's `apply_chat_template`."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation], cache_size=0
    )
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return made


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


def _compiled(jinja: ImmutableSandboxedEnvironment, source: str) -> jinja2.Template | str:
    """The template, or what is wrong with it."""
    try:
        return jinja.from_string(source)
    except jinja2.TemplateSyntaxError as e:
        return f" at line {e.lineno}: {e}"
    except MemoryError:
        raise
    except Exception as e:  # also what Python's compiler says of the code that Jinja writes
        return f": {type(e).__name__}: {e}"


def _rendered(template: jinja2.Template, values: dict[str, Any]) -> tuple[bytes, str]:
    parts, length = [], 0
    try:
        for part in template.generate(values):
            parts.append(part)
            length += len(part)
            if length > LENGTH_LIMIT:
                return FAILED, f"it writes more than {LENGTH_LIMIT} characters"
        return OK, "".join(parts)
    except _TemplateRaised as e:
        return REFUSED, str(e)
    except MemoryError:
        raise
    except Exception as e:  # a template can fail in any way that Python can
        return FAILED, f"{type(e).__name__}: {e}"


def _answer(jinja: ImmutableSandboxedEnvironment, source: str, values: dict[str, Any] | None) -> tuple[bytes, str]:
    try:
        template = _compiled(jinja, source)
        if isinstance(template, str):
            return INVALID, template
        return (OK, "") if values is None else _rendered(template, values)
    except MemoryError:
        return MEMORY, ""


def _read(size: int) -> bytes | None:
    out = bytearray()
    while len(out) < size:
        piece = os.read(0, min(size - len(out), 1 << 20))
        if not piece:
            return None
        out += piece
    return bytes(out)


def _write(status: bytes, text: str) -> None:
    if status != OK and len(text) > _LONGEST_MESSAGE:
        text = text[:_LONGEST_MESSAGE] + "..."
    data = text.encode("utf-8", "surrogatepass" if status == OK else "backslashreplace")
    data = HEADER.pack(status, len(data)) + data
    at = 0
    while at < len(data):
        at += os.write(1, memoryview(data)[at:])


def serve() -> None:
    """Answer requests until the other side closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    for what in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(what, (0, 0))
    jinja = environment()
    _write(READY, "")
    while (head := _read(LENGTH.size)) is not None:
        body = _read(LENGTH.unpack(head)[0])
        if body is None:
            return
        source, values = marshal.loads(body)
        _write(*_answer(jinja, source, values))
