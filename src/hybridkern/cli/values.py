"""Types of command-line values: each says what it wants, so that argparse can say it to the user."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from typing import TypeVar

from hybridkern.errors import ArgumentError

T = TypeVar("T")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "0": "\0"}


def integer(low: int, high: int = 2**31 - 1, special: str = "") -> Callable[[str], int]:
    """An integer within [low, high]; `special` explains a value with a meaning of its own."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
        if not low <= value <= high:
            span = f"{low} or more" if high == 2**31 - 1 else f"from {low} to {high}"
            raise argparse.ArgumentTypeError(f"{value} is out of range; allowed: {span}{special}")
        return value

    return parse


def number(low: float, high: float = float("inf")) -> Callable[[str], float]:
    """A finite number within [low, high]."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not low <= value <= high or value in (float("inf"), float("-inf")):
            span = f"{low:g} or more" if high == float("inf") else f"from {low:g} to {high:g}"
            raise argparse.ArgumentTypeError(f"{text} is out of range; allowed: {span}")
        return value

    return parse


MOST_VALUES = 256  # of a list: more were a slip, and a sweep over them would last for days
_SPAN = re.compile(r"(\d{1,9})-(\d{1,9})(?:([+*])(\d{1,9}))?")


def several(one: Callable[[str], T], spans: bool = True) -> Callable[[str], list[T]]:
    """A list of values, separated by commas. spans: whether first-last, first-last+step and first-last*factor stand
    for numbers, as llama-bench takes them."""

    def parse(text: str) -> list[T]:
        pieces: list[str] = []
        for piece in text.split(","):
            found = _SPAN.fullmatch(piece) if spans else None
            pieces += [piece] if found is None else _span(piece, *found.groups())
            if len(pieces) > MOST_VALUES:
                raise argparse.ArgumentTypeError(f"{text!r} stands for more than {MOST_VALUES} values")
        return [one(piece) for piece in pieces]

    return parse


def _span(text: str, first: str, last: str, operation: str | None, by: str | None) -> list[str]:
    """The numbers of a span, one more than are allowed at most."""
    low, high, step = int(first), int(last), int(by or 1)
    if low > high or (operation == "*" and (step < 2 or low < 1)) or step < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no span such as 128-512, 128-512+128 or 128-2048*2")
    made = []
    while low <= high and len(made) <= MOST_VALUES:
        made.append(str(low))
        low = low * step if operation == "*" else low + step
    return made


def one_of(*allowed: str) -> Callable[[str], str]:
    """One of some words."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(allowed)}")
        return text

    return parse


def pair(text: str) -> tuple[int, int]:
    """Two numbers of tokens, separated by a comma."""
    pieces = text.split(",")
    if len(pieces) != 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not PROMPT,GENERATED, such as 512,128")
    first, second = (integer(1, 1 << 24)(piece) for piece in pieces)
    return first, second


def layers(text: str) -> int | str:
    """all, auto, or how many."""
    if text in ("all", "auto"):
        return text
    try:
        return integer(0)(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not all, auto, or a number from 0 on") from None


def gpu_name(text: str) -> int | str:
    """The number of the one GPU that is named, or "none"."""
    lower = text.lower()
    if lower in ("none", "cpu"):
        return "none"
    number = lower.removeprefix("cuda")
    if not number.isdecimal() or len(number) > 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not one GPU such as CUDA0, or none")
    return int(number)


def numbers(low: float, whole: bool = True) -> Callable[[str], tuple[float, ...]]:
    """Numbers from `low` on, separated by commas (or slashes, as -ts of llama.cpp allows)."""

    def parse(text: str) -> tuple[float, ...]:
        one = integer(int(low)) if whole else number(low)
        return tuple(one(piece) for piece in text.replace("/", ",").split(","))

    return parse


def on_off(text: str) -> bool:
    """on or off."""
    if text.lower() in ("on", "off", "1", "0"):
        return text.lower() in ("on", "1")
    raise argparse.ArgumentTypeError(f"{text!r} is not on or off")


def logit_bias(text: str) -> dict[int, float]:
    """TOKEN_ID+BIAS or TOKEN_ID-BIAS, several separated by commas; "-inf" forbids a token."""
    biases = {}
    for item in text.split(","):
        at = max(item.find("+"), item.find("-"))
        first = min((i for i in (item.find("+"), item.find("-")) if i > 0), default=at)
        try:
            token, bias = int(item[:first]), float(item[first:])
        except ValueError:
            token, bias = -1, 0.0
        if token < 0 or bias != bias:
            raise argparse.ArgumentTypeError(f"{item!r} is not TOKEN_ID+BIAS or TOKEN_ID-BIAS, such as 15043-inf")
        biases[token] = bias
    return biases


def unescape(text: str) -> str:
    """Replaces \\n, \\t, \\r, \\\\, \\', \\", \\0 and \\xHH; leaves any other backslash alone."""
    out, i = [], 0
    while i < len(text):
        here, following = text[i], text[i + 1 : i + 2]
        if here == "\\" and following in _ESCAPES and following:
            out.append(_ESCAPES[following])
            i += 2
        elif here == "\\" and following == "x" and _is_hex(text[i + 2 : i + 4]):
            out.append(chr(int(text[i + 2 : i + 4], 16)))
            i += 4
        else:
            out.append(here)
            i += 1
    return "".join(out)


def _is_hex(text: str) -> bool:
    return len(text) == 2 and all(c in "0123456789abcdefABCDEF" for c in text)


def words(text: str) -> str:
    """Free text. What was no valid UTF-8 on the command line reaches Python as surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{text[:40]!a} is not valid UTF-8 at character {error.start}") from None
    return text


def given_text(args: argparse.Namespace) -> str | None:
    """The text of -p, or of the file (- is standard input) of -f; ArgumentError where the file cannot be read."""
    if args.file is None:
        text: str | None = args.prompt
        return text
    try:
        if args.file == "-":
            return words(sys.stdin.read())
        with open(args.file, encoding="utf-8") as source:
            return source.read()
    except argparse.ArgumentTypeError as error:
        raise ArgumentError(f"-f {args.file}: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"-f {args.file}: {getattr(error, 'strerror', None) or error}") from error
