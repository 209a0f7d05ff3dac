"""What is fuzzed: from the bytes of files to a model's configuration, weights and vocabulary, and from text to tokens.

A target takes an input and returns. Errors of the package's own family are what it should raise; anything else that
comes out is a finding, and so is a message that cannot be printed.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from hybridkern.errors import GGUFError, HybridKernError
from hybridkern.gguf import GGUFFile, require_finite, validate_quants
from hybridkern.model import LoadedModel
from hybridkern.text import ChatTemplate, Detokenizer, Vocabulary

from .places import LARGEST, placed
from .wire import parts_of

LONGEST_MESSAGE = 20_000
_TEMPLATE_SECONDS = 0.2
_GETTERS = ("get_int", "get_float", "get_str", "get_bool", "get_array")
_ELEMENTS: tuple[Any, ...] = (None, "int", "float", "str", "bool")


class Finding(Exception):
    """A result that is wrong although nothing was raised."""


@contextlib.contextmanager
def expected(path: str = "") -> Iterator[None]:
    """An error of ours is fine if it can be printed, is not endless, and names the file where that is asked for."""
    try:
        yield
    except HybridKernError as e:
        message = str(e)
        path = path.encode("utf-8", "backslashreplace").decode()
        if (
            len(message) > LONGEST_MESSAGE
            or path not in message
            or message != message.encode("utf-8", "replace").decode()
        ):
            raise Finding(f"a bad message: {message[:500]!r}") from e
        if isinstance(e.__cause__ or e.__context__, MemoryError):
            raise Finding(f"memory ran out: {message[:500]!r}") from e


def _read_metadata(file: GGUFFile, dice: int) -> None:
    m = file.metadata
    if len(dict(m)) != len(m):
        raise Finding("keys are lost")
    for i, key in enumerate(m):
        with expected():
            m.type_of(key), m.raw(key), m.offset_of(key)
            getter = getattr(m, _GETTERS[(dice + i) % 5])
            getter(key, *([None] if dice & 1 else []), **({"of": _ELEMENTS[i % 5]} if getter == m.get_array else {}))
    with expected(file.path):
        m.get_int("no such key")


def _read_data(file: GGUFFile, dice: int) -> None:
    sizes = [os.path.getsize(p) for p in file.paths]
    ends: dict[int, list[tuple[int, int]]] = {}
    for name, info in file.tensors.items():
        if not (info.nbytes > 0 and info.offset + info.nbytes <= sizes[info.part]):
            raise Finding(f"tensor {name!r} is not inside of its file")
        ends.setdefault(info.part, []).append((info.offset, info.offset + info.nbytes))
        if info.n_elements // info.shape[0] * info.row_bytes != info.nbytes or info.numpy_shape[-1] != info.shape[0]:
            raise Finding(f"tensor {name!r} has other rows than bytes")
        with expected(file.path if info.part == 0 else ""):
            file.prefetch(name)
            if file.data(name).nbytes != info.nbytes or not file.address(name):
                raise Finding(f"tensor {name!r} has other bytes than it says")
            if dice & 2:
                file.release(name)
            int(file.data(name).sum())
    for places in ends.values():
        places.sort()
        if any(a[1] > b[0] for a, b in itertools.pairwise(places)):
            raise Finding("tensors overlap")
    with expected():
        (require_finite if dice & 4 else validate_quants)(file)
    with expected(file.path):
        file.data("no such tensor")


def _cut_while_open(file: GGUFFile, dice: int) -> None:
    """Somebody cuts the file while it is open: an error, whether by the size or by the page that is gone."""
    path = file.paths[dice % len(file.paths)]
    size = os.path.getsize(path)
    os.truncate(path, size // 2)
    for name in file.tensors:
        with expected():
            int(file.data(name).sum())
    try:
        file.check_intact()
    except GGUFError:
        os.truncate(path, size)  # what was lost stays lost: a page that was touched meanwhile is remembered
        with expected(path):
            file.check_intact()
        return
    raise Finding("a file that was cut is called intact")


def _options(paths: list[str], raw: bytes, dice: int) -> dict[str, Any]:
    options: dict[str, Any] = {"mmap": bool(dice & 1), "mlock": dice % 61 == 0}
    if dice % 31 == 0 and not any(os.path.exists(p) and os.path.getsize(p) > LARGEST for p in paths):
        first = parts_of(raw)[0] if dice % 2 else b""
        digest = hashlib.sha256(first).hexdigest()[: 63 if dice % 7 == 0 else 64]
        options["sha256"] = ",".join([digest] * (1 + dice % 3))
    return options


def reader(raw: bytes, folder: str) -> None:
    """Open a file, read all of it, bind a model to it."""
    dice = zlib.crc32(raw)
    with placed(folder, raw, dice // 19 if dice % 19 == 0 else 0) as paths:
        options = _options(paths, raw, dice)
        with expected(paths[0] if len(paths) == 1 and "sha256" not in options else ""):
            with GGUFFile.open(paths[0], **options) as file:
                _read_all(file, dice)
            with expected(paths[0]):
                file.check_intact()
            for name in file.tensors:
                with expected(paths[0]):
                    file.data(name)


def _read_all(file: GGUFFile, dice: int) -> None:
    if not (file.nbytes and file.version in (2, 3) and file.alignment >= 8):
        raise Finding("a file that says nothing of itself")
    cut = dice % 34  # 0: before the data was looked at, 17: after it
    _read_metadata(file, dice)
    (_read_data if cut else _cut_while_open)(file, dice)
    with expected():
        LoadedModel.from_gguf(file)
    with expected():
        Vocabulary.from_metadata(file.metadata)
    if cut == 17:
        _cut_while_open(file, dice)
    elif cut:
        file.check_intact()


def _texts(metadata: Any) -> list[str]:
    given = metadata.get("fuzz.text", "")
    text = given if isinstance(given, str) else "a"
    return ["", text, text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")]


def _messages(text: str, dice: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    if dice & 1:
        messages.insert(0, {"role": "system", "content": [{"type": "text", "text": text}]})
    if dice & 2:
        messages.append({"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"a": 1}}]})
    return messages


def _round_trip(vocabulary: Vocabulary, text: str, special: bool) -> None:
    ids = vocabulary.encode(text, special=special)
    if not all(0 <= i < vocabulary.n_tokens for i in ids):
        raise Finding("an id outside of the vocabulary")
    vocabulary.token_texts(ids)
    for skip in (False, True):
        stream = Detokenizer(vocabulary, skip_special=skip)
        streamed = "".join([stream.push(i) for i in ids]) + stream.flush()
        if streamed != vocabulary.decode(ids, skip_special=skip):
            raise Finding(f"streamed {streamed!r}, but decoded {vocabulary.decode(ids, skip)!r}")


def text(raw: bytes, folder: str) -> None:
    """Build the vocabulary of a file, encode its key `fuzz.text`, decode, and render its chat template."""
    dice = zlib.crc32(raw)
    with placed(folder, raw) as paths, expected(), GGUFFile.open(paths[0]) as file:
        vocabulary = Vocabulary.from_metadata(file.metadata)
        for sample in _texts(file.metadata):
            with expected():
                _round_trip(vocabulary, sample, special=bool(dice & 1))
            with expected():
                _round_trip(vocabulary, sample, special=not dice & 1)
        every = list(range(vocabulary.n_tokens))
        vocabulary.decode(every).encode()
        source = vocabulary.chat_template
        if source is None:
            return
        chat = ChatTemplate(source, vocabulary, time_limit_s=_TEMPLATE_SECONDS)
        sample = _texts(file.metadata)[1 + (dice >> 3) % 2]
        chat.encode_chat(_messages(sample, dice), tools=[{"name": "f"}] if dice & 4 else None)


TARGETS: dict[str, Callable[[bytes, str], None]] = {"reader": reader, "text": text}


def quiet() -> None:
    """Warnings about doubtful vocabularies are no findings."""
    warnings.simplefilter("ignore")
