"""Streaming: never half a character, never a stall, the same text as decoding at once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hybridkern.text import Detokenizer, Vocabulary


def stream(vocabulary: Vocabulary, ids: list[int], **keys: object) -> list[str]:
    detokenizer = Detokenizer(vocabulary, **keys)  # type: ignore[arg-type]
    return [detokenizer.push(token) for token in ids] + [detokenizer.flush()]


def test_a_character_over_several_tokens_comes_whole(tiny_bpe: Vocabulary) -> None:
    assert stream(tiny_bpe, list("x🦙y".encode())) == ["x", "", "", "", "🦙", "y", ""]


def test_an_unfinished_character_comes_out_at_the_end(tiny_bpe: Vocabulary) -> None:
    assert stream(tiny_bpe, [ord("a"), 0xF0, 0x9F]) == ["a", "", "", "\ufffd"]


def test_a_lone_ff_does_not_stall(tiny_bpe: Vocabulary) -> None:
    assert stream(tiny_bpe, [0xFF, ord("a")]) == ["\ufffd", "a", ""]
    # The unfinished one is given up as soon as the next byte cannot continue it.
    assert stream(tiny_bpe, [0xE4, 0xB8, ord("a")]) == ["", "", "\ufffda", ""]


def test_control_tokens_are_left_out_or_shown(tiny_bpe: Vocabulary) -> None:
    ids = [258, ord("a"), 260, 259]
    assert "".join(stream(tiny_bpe, ids)) == "a<tool>"
    assert "".join(stream(tiny_bpe, ids, skip_special=False)) == "<|im_start|>a<tool><|im_end|>"


def test_the_leading_space_of_spm(spm: Vocabulary) -> None:
    ids = spm.encode("the the", bos=False)
    assert [spm.tokens[i] for i in ids] == ["▁the", "▁the"]
    assert stream(spm, ids) == ["the", " the", ""]
    # Behind a prompt the space belongs to the text.
    assert stream(spm, ids, previous=ids[-1]) == [" the", " the", ""]
    assert stream(spm, ids, previous=spm.bos_id) == ["the", " the", ""]


def test_flush_makes_ready_for_the_next_text(tiny_bpe: Vocabulary) -> None:
    detokenizer = Detokenizer(tiny_bpe)
    detokenizer.push(0xF0)
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.push(ord("a")) == "a"


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_streamed_equals_decoded(spm: Vocabulary, tiny_bpe: Vocabulary, data: st.DataObject) -> None:
    vocabulary = data.draw(st.sampled_from([spm, tiny_bpe]))
    ids = data.draw(st.lists(st.integers(0, vocabulary.n_tokens - 1), max_size=40))
    skip = data.draw(st.booleans())
    assert "".join(stream(vocabulary, ids, skip_special=skip)) == vocabulary.decode(ids, skip_special=skip)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=30))
def test_no_replacement_character_in_valid_text(tiny_bpe: Vocabulary, text: str) -> None:
    pieces = stream(tiny_bpe, list(text.encode()))
    assert "".join(pieces) == text
    assert pieces[-1] == ""
