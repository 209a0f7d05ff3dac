"""Asks the process of `sandbox.py`, which it starts and ends, to check and render chat templates."""

from __future__ import annotations

import atexit
import contextlib
import marshal
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hybridkern.errors import ArgumentError, TokenizerError
from hybridkern.text.sandbox import (
    FAILED,
    HEADER,
    INVALID,
    LENGTH,
    LENGTH_LIMIT,
    MEMORY,
    MEMORY_LIMIT,
    OK,
    READY,
    REFUSED,
)  # fmt: skip

_START = "import sys; sys.path[:] = {path!r}; import sandbox; del sys.path[0]; sandbox.serve()"
_START_S = 60.0
_DEEPEST = 64


class _OutOfTime(Exception):
    pass


class _Died(Exception):
    pass


def plain(value: Any, what: str, depth: int = 0) -> Any:
    """`value` as None, bool, int, float, str, lists and dicts of them; ArgumentError names what cannot be."""
    if depth > _DEEPEST:
        raise ArgumentError(f"{what} is nested deeper than {_DEEPEST}, or holds itself")
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind.__str__(value) if kind is str else kind(value)
    if isinstance(value, Mapping):
        return {
            plain(k, f"a key of {what}", depth + 1): plain(v, f"{what}[{k!r}]", depth + 1) for k, v in value.items()
        }
    if isinstance(value, (Sequence, set, frozenset)) and not isinstance(value, (bytes, bytearray, memoryview)):
        made = (plain(v, f"{what}[{i}]", depth + 1) for i, v in enumerate(value))
        return tuple(made) if isinstance(value, tuple) else list(made)
    if callable(getattr(value, "item", None)) and getattr(value, "shape", None) == ():  # a number of NumPy's
        return plain(value.item(), what, depth + 1)
    raise ArgumentError(
        f"{what} is of type {type(value).__name__}; a chat template gets strings, numbers, lists and dicts"
    )


class _Process:
    """One process of `sandbox.py`, with pipes that never block for longer than they are told."""

    def __init__(self) -> None:
        if not sys.executable or getattr(sys, "frozen", False):
            raise TokenizerError(
                "chat templates run in a Python process of their own, but sys.executable names no Python"
            )
        path = [os.path.dirname(os.path.abspath(__file__)), *sys.path]
        self.owner = os.getpid()
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _START.format(path=path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the program, not for this
            )
        except OSError as e:
            raise TokenizerError(f"chat templates run in a process of their own, which cannot be started: {e}") from e
        assert self._child.stdin is not None and self._child.stdout is not None
        self._in, self._out = self._child.stdin.fileno(), self._child.stdout.fileno()
        os.set_blocking(self._in, False)
        try:
            status, _ = self._receive(time.monotonic() + _START_S)
        except (_OutOfTime, _Died) as e:
            self.end()
            raise TokenizerError(f"the process that runs chat templates did not start ({sys.executable})") from e
        assert status == READY

    def ask(self, request: bytes, seconds: float) -> tuple[bytes, str]:
        """The answer to a request."""
        deadline = time.monotonic() + seconds
        self._send(LENGTH.pack(len(request)) + request, deadline)
        return self._receive(deadline)

    def _wait(self, fd: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(fd, event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise _OutOfTime

    def _send(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            self._wait(self._in, select.POLLOUT, deadline)
            try:
                rest = rest[os.write(self._in, rest[: 1 << 16]) :]
            except BlockingIOError:  # less room than a page
                time.sleep(0.001)
            except BrokenPipeError as e:
                raise _Died from e

    def _read(self, size: int, deadline: float) -> bytes:
        out = bytearray()
        while len(out) < size:
            self._wait(self._out, select.POLLIN, deadline)
            piece = os.read(self._out, min(size - len(out), 1 << 20))
            if not piece:
                raise _Died
            out += piece
        return bytes(out)

    def _receive(self, deadline: float) -> tuple[bytes, str]:
        status, size = HEADER.unpack(self._read(HEADER.size, deadline))
        if size > 4 * LENGTH_LIMIT:
            raise _Died
        return status, self._read(size, deadline).decode("utf-8", "surrogatepass")

    def end(self) -> str:
        """End the process; returns how it ended."""
        with contextlib.suppress(OSError):
            self._child.kill()
        self.close()
        code = self._child.wait()
        return signal.Signals(-code).name if code < 0 else f"status {code}"

    def close(self) -> None:
        """Close this side of the pipes."""
        for pipe in (self._child.stdin, self._child.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()


class Renderer:
    """The one process that all templates of this program share; it is started when the first is asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def ask(self, source: str, values: dict[str, Any] | None, seconds: float) -> str:
        """The rendered text; without values the source is only checked. TokenizerError for whatever goes wrong."""
        request = marshal.dumps((source, values))
        with self._lock:
            status, text = self._answer(request, seconds)
        if status == OK:
            return text
        told = {
            INVALID: "is not valid",
            REFUSED: "refuses these messages: ",
            MEMORY: f"needs more than {MEMORY_LIMIT >> 20} MiB of memory",
        }.get(status, "failed: ")
        raise TokenizerError(f"the chat template {told}{text}")

    def _answer(self, request: bytes, seconds: float) -> tuple[bytes, str]:
        process = self._process
        if process is not None and process.owner != os.getpid():  # a child made by fork has a process of its own
            process = self._process = None
        if process is None:
            process = self._process = _Process()
        answer = None
        try:
            answer = process.ask(request, seconds)
            return answer
        except _OutOfTime:
            raise TokenizerError(f"the chat template did not end within {seconds:g} s") from None
        except _Died:
            self._process = None
            return FAILED, f"it broke the process that runs it ({process.end()})"
        finally:
            # Also after Ctrl-C: an answer that nobody waited for must not be taken for the next one.
            if (answer is None or answer[0] == MEMORY) and self._process is not None:
                self._process.end()
                self._process = None

    def end(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None and process.owner == os.getpid():
            process.end()


RENDERER = Renderer()
atexit.register(RENDERER.end)
