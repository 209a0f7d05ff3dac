"""Stop strings: against a search in the whole text, however the stream is cut."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridkern.errors import ArgumentError
from hybridkern.text import StopMatcher


def run(stop: list[str] | str | None, pieces: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stop)
    out = "".join(matcher.push(piece) for piece in pieces)
    return out + matcher.flush(), matcher.matched


def test_a_stop_string_over_three_tokens() -> None:
    matcher = StopMatcher("beta")
    assert [matcher.push(piece) for piece in ("al", "pha be", "ta gam")] == ["al", "pha ", ""]
    assert matcher.stopped and matcher.matched == "beta"
    assert matcher.push("more") == "" and matcher.flush() == ""


def test_held_text_comes_out_when_it_was_none() -> None:
    matcher = StopMatcher(["beta"])
    assert matcher.push("alpha be") == "alpha "
    assert matcher.held == "be"
    assert matcher.push("st") == "best"
    assert matcher.push(" bet") == " "
    assert matcher.flush() == "bet"
    assert matcher.matched is None


def test_only_what_is_needed_is_held() -> None:
    matcher = StopMatcher(["aab"])
    assert matcher.push("aaa") == "a"
    assert matcher.push("a") == "a"
    assert matcher.push("b") == ""
    assert matcher.matched == "aab"


def test_the_first_complete_match_wins() -> None:
    assert run(["world", "lo"], ["hello world"]) == ("hel", "lo")
    assert run(["abcd", "bc"], ["xabcd"]) == ("xa", "bc")
    assert run(["c", "abc"], ["xabc"]) == ("x", "abc")
    assert run(["\n\n"], ["a\n", "b\n", "\nc"]) == ("a\nb", "\n\n")


def test_no_stop_strings() -> None:
    assert run(None, ["a", "b"]) == ("ab", None)
    assert run([], ["a", "b"]) == ("ab", None)


@pytest.mark.parametrize("stop", ["", ["a", ""], [3]])
def test_bad_stop_strings(stop: object) -> None:
    with pytest.raises(ArgumentError, match="stop:"):
        StopMatcher(stop)  # type: ignore[arg-type]


@settings(max_examples=300, deadline=None)
@given(
    stop=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
    pieces=st.lists(st.text("abc", max_size=5), max_size=12),
)
def test_against_a_search_in_the_whole_text(stop: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    ends = [(text.find(s) + len(s), text.find(s), s) for s in stop if s in text]
    expected = (text[: min(ends)[1]], min(ends)[2]) if ends else (text, None)
    assert run(stop, pieces) == expected

    # What is held never exceeds the longest suffix that begins a stop string.
    matcher = StopMatcher(stop)
    so_far = out = ""
    for piece in pieces:
        so_far += piece
        out += matcher.push(piece)
        if matcher.stopped:
            break
        begun = [n for n in range(len(so_far) + 1) for s in stop if n < len(s) and so_far.endswith(s[:n])]
        assert len(so_far) - len(out) == max(begun, default=0)


def test_linear_time_in_stop_strings_and_text() -> None:
    start = time.process_time()
    out, matched = run(["a" * 5000 + "b"], ["a" * 1000] * 50)
    assert (out, matched) == ("a" * 50_000, None)
    assert time.process_time() - start < 5
