"""Where results may be written: never over what is read, and never in the place of something that is no file."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from hybridkern.errors import ArgumentError


def check_target(path: str | os.PathLike[str], sources: Iterable[str | os.PathLike[str]] = ()) -> Path:
    """The path to write to; before hours of work, not behind them. sources: files that are read, links followed.

    Raises ArgumentError where the path is one of the sources, a folder, a device, pipe or socket (a rename would put a
    file in its place), or lies in a folder that does not exist or takes no files.
    """
    target = Path(path)
    why = _why_not(target)
    if why:
        raise ArgumentError(f"{target}: cannot be written: {why}")
    for source in sources:
        with contextlib.suppress(OSError):  # what is not there, or not yet, is not replaced
            if os.path.samefile(source, target):
                raise ArgumentError(f"{target}: input and output are the same file")
    return target


def _why_not(target: Path) -> str:
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    except OSError as error:
        return error.strerror or str(error)
    if stat.S_ISDIR(mode):
        return "is a folder"
    if not stat.S_ISREG(mode):
        return "is no file, but a device, a pipe or a socket"
    if not target.parent.is_dir():
        return f"the folder {str(target.parent)!r} does not exist"
    if not os.access(target.parent, os.W_OK):
        return f"the folder {str(target.parent)!r} takes no files"
    return ""
