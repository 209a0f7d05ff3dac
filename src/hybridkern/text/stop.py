"""Stop strings in a stream of text."""

from __future__ import annotations

from collections.abc import Iterable

from hybridkern.errors import ArgumentError


class StopMatcher:
    """Cuts a stream at the first stop string that is complete.

    Text comes in pieces of any length (`push`) and goes out as soon as it cannot belong to a stop string any more:
    only a suffix that begins a stop string is held, the shortest that is safe. Where the pieces are cut makes no
    difference. The match whose last character comes first wins; of two that end together, the longer one. Nothing of
    the match or behind it ever gets out.

    Each stop string runs its own Knuth-Morris-Pratt automaton (SIAM J. Comput. 6, 1977): the state is how many of its
    characters the text now ends with, so the cost per character does not depend on the length of the strings.
    """

    def __init__(self, stop: str | Iterable[str] | None = None) -> None:
        strings = stop_strings(stop)
        self._strings = sorted(set(strings), key=lambda text: -len(text))
        self._tables = [_failure_table(text) for text in self._strings]
        self._states = [0] * len(self._strings)
        self._firsts = frozenset(text[0] for text in self._strings)
        self._held = ""
        #: The stop string that was found, None so far.
        self.matched: str | None = None

    @property
    def stopped(self) -> bool:
        """Has a stop string been found?"""
        return self.matched is not None

    @property
    def held(self) -> str:
        """Text that is held back because it may be the beginning of a stop string."""
        return self._held

    def push(self, piece: str) -> str:
        """The text that may go out after this piece; "" once a stop string was found."""
        if not self._strings:
            return piece
        if self.matched is not None:
            return ""
        if not self._held and self._firsts.isdisjoint(piece):
            return piece
        text = self._held + piece
        for index, char in enumerate(piece, len(self._held) + 1):
            if (number := self._advance(char)) >= 0:
                self.matched, self._held = self._strings[number], ""
                return text[: index - len(self.matched)]
        keep = max(self._states)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The held text, at the end of a generation in which no stop string came."""
        text, self._held = self._held, ""
        self._states = [0] * len(self._strings)
        return text

    def _advance(self, char: str) -> int:
        """Feed one character; the number of the stop string that it completes, or -1."""
        complete = -1
        for number, text in enumerate(self._strings):
            state, table = self._states[number], self._tables[number]
            while state and text[state] != char:
                state = table[state - 1]
            if text[state] == char:
                state += 1
            self._states[number] = state
            if state == len(text) and complete < 0:  # longest first
                complete = number
        return complete


def stop_strings(stop: str | Iterable[str] | None) -> list[str]:
    """The strings of an argument `stop`; ArgumentError unless it is one or several texts of a character at least."""
    if stop is not None and not isinstance(stop, Iterable):
        raise ArgumentError(f"stop = {stop!r}: a text or several texts are needed")
    strings = [stop] if isinstance(stop, str) else list(stop or ())
    for text in strings:
        if not isinstance(text, str) or not text:
            raise ArgumentError(f"stop: {text!r} is not a stop string: it must be a text of at least one character")
    return strings


def _failure_table(text: str) -> list[int]:
    """For each prefix: the length of its longest proper suffix that is also a prefix."""
    table = [0] * len(text)
    length = 0
    for i in range(1, len(text)):
        while length and text[i] != text[length]:
            length = table[length - 1]
        if text[i] == text[length]:
            length += 1
        table[i] = length
    return table
