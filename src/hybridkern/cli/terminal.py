"""Standard output and standard error as the commands use them: text out, everything about it to the side."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any


def note(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"hybridkern: {text}\n")
    sys.stderr.flush()


def write(text: str) -> None:
    """Text to standard output, at once."""
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()


def prepare_streams() -> None:
    """Never die of a character that the terminal cannot show, nor of a stream that is closed (`>&-`).

    A closed stream becomes the null device. It takes its old number, so that no file that is opened later does, and
    what is written to the stream ends up in it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _occupy(number)
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _occupy(number: int) -> None:
    """Open the null device as file `number` if nothing is open there."""
    try:
        os.fstat(number)
    except OSError:
        nowhere = os.open(os.devnull, os.O_RDWR)
        if nowhere != number:
            os.dup2(nowhere, number)
            os.close(nowhere)


def silence_stdout() -> None:
    """After a broken pipe: what is still buffered goes nowhere, so that the interpreter ends without a complaint."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def console(to_stderr: bool = False) -> Any:
    """A rich console; tables keep their width when the output is not a terminal."""
    from rich.console import Console

    stream = sys.stderr if to_stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else 120, highlight=False)


@contextlib.contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """Shows on a terminal that something is under way; silent elsewhere. Gives what says more of it."""
    if not sys.stderr.isatty():
        yield lambda more: None
        return
    with console(to_stderr=True).status(text) as status:
        yield lambda more: status.update(f"{text} {more}")


@contextlib.contextmanager
def loading(text: str) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on a terminal, None elsewhere: a function of the bytes done and in all."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True)
    with Progress(*columns, console=console(to_stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def size(n: float) -> str:
    """A number of bytes for people: binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"
