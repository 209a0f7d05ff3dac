"""What stands where a file is looked for: mostly the file, now and then nothing, a folder, a pipe, a file that lies."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Callable, Iterator

from .wire import parts_of

# What a file grows to, with nothing in it: more than one read of the header, more than any memory.
_SIZES = (1 << 13, (1 << 16) + 8, 1 << 17, 3 << 20, 1 << 40)
LARGEST = 1 << 22
_NAMES = (b"m\xff\n.gguf", b"m", b"m-00001-of-00009.gguf", b"m-00002-of-00002.gguf", b"m" * 300, b"m\0.gguf")


def _folder(path: str, dice: int) -> None:
    os.mkdir(path)


def _pipe(path: str, dice: int) -> None:
    os.mkfifo(path)


def _socket(path: str, dice: int) -> None:
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(path)


def _link(path: str, dice: int) -> None:
    # A device; itself; nothing; a regular file that cannot be read; one that has fewer bytes than it says.
    places = ("/dev/zero", path, path + ".none", "/proc/self/mem", "/sys/devices/system/cpu/online")
    os.symlink(places[dice % len(places)], path)


def _missing(path: str, dice: int) -> None:
    pass


_INSTEAD: tuple[Callable[[str, int], None], ...] = (_folder, _pipe, _socket, _link, _link, _link, _missing)


def _odd(path: str, dice: int) -> str:
    """Put something else at `path`, or the file in another place; returns the path to open."""
    kind, dice = dice % 13, dice // 13
    if kind < len(_INSTEAD):
        os.unlink(path)
        _INSTEAD[kind](path, dice)
    elif kind < 11:
        os.truncate(path, _SIZES[dice % len(_SIZES)])
    elif kind == 11:
        os.chmod(path, 0)  # a superuser may read it all the same
    else:
        name = os.fsdecode(_NAMES[dice % len(_NAMES)])
        other = os.path.join(os.path.dirname(path), name)
        with contextlib.suppress(OSError, ValueError):  # names that no file can have
            os.rename(path, other)
        return other
    return path


@contextlib.contextmanager
def placed(folder: str, raw: bytes, dice: int = 0) -> Iterator[list[str]]:
    """The paths of an input's files, written to `folder` and named as split models are.

    dice: not 0 puts something odd in the place of one of them.
    """
    with tempfile.TemporaryDirectory(dir=folder) if dice else contextlib.nullcontext(folder) as inside:
        parts, paths = parts_of(raw), []
        for no, part in enumerate(parts, 1):
            name = f"m-{no:05d}-of-{len(parts):05d}.gguf" if len(parts) > 1 else "m.gguf"
            paths.append(os.path.join(inside, name))
            with open(paths[-1], "wb") as f:
                f.write(part)
        if dice:
            at = dice % len(paths)
            paths[at] = _odd(paths[at], dice // len(paths))
        yield paths
