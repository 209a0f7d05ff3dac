"""Sessions and generation over the float64 yardstick: what is computed, what is reused, what is given back."""

from __future__ import annotations

import gc
import itertools
import threading

import numpy as np
import pytest
from reference_engine import ReferenceEngine

import hybridkern as hk
from hybridkern.runtime import model_api

PROMPT = [1, 70, 80, 90, 100]


@pytest.fixture
def model(tiny_llama, monkeypatch):
    monkeypatch.setattr(model_api, "Engine", ReferenceEngine)
    with hk.load(tiny_llama, n_ctx=32) as loaded:
        yield loaded


def ids_of(pieces):
    return [piece.token_id for piece in pieces]


def test_the_prompt_is_computed_once_and_then_a_token_at_a_time(model):
    pieces = list(model.generate(PROMPT, max_tokens=4, temperature=0, ignore_eos=True))
    assert model.engine.evaluated == [5, 1, 1, 1]
    assert [piece.finish_reason for piece in pieces] == [None, None, None, "length"]
    assert all(piece.logprob <= 0 for piece in pieces)
    assert not model.engine.live


def test_a_session_says_what_it_is(model):
    session = model.session()
    list(session.generate(PROMPT, max_tokens=4, temperature=0, ignore_eos=True))
    assert repr(session) == f"<hybridkern.Session of {model!r}, 8 of 32 tokens>"
    session.close()
    assert repr(session).endswith(", closed>")


def test_greedy_pieces_follow_the_logits(model):
    made = ids_of(model.generate(PROMPT, max_tokens=6, temperature=0, ignore_eos=True))
    rows = model.logits(PROMPT + made[:-1])[len(PROMPT) - 1 :]
    assert rows.argmax(1).tolist() == made


def test_a_context_that_fills_up_ends_the_generation(model):
    pieces = list(model.generate(PROMPT, max_tokens=None, temperature=0, ignore_eos=True))
    assert len(PROMPT) + len(pieces) == model.n_ctx + 1  # the last one takes no place
    assert pieces[-1].finish_reason == "length"


def test_a_prompt_that_fills_the_context_gives_one_piece(model):
    pieces = list(model.generate([5] * 32, temperature=0, ignore_eos=True))
    assert [piece.finish_reason for piece in pieces] == ["length"]


def test_a_longer_prompt_is_refused_with_both_numbers(model):
    with pytest.raises(hk.ContextError, match=r"33 tokens.* 32 "):
        model.generate([5] * 33)
    with pytest.raises(hk.ContextError, match=r"33 tokens.* 32 "):
        model.logits([5] * 33)


def test_an_end_token_stops(model, monkeypatch):
    first = ids_of(model.generate(PROMPT, max_tokens=3, temperature=0, ignore_eos=True))
    monkeypatch.setattr(model.vocabulary, "end_ids", frozenset([first[-1]]))
    expected = first.index(first[-1]) + 1
    pieces = list(model.generate(PROMPT, max_tokens=9, temperature=0))
    assert ids_of(pieces) == first[:expected]
    assert pieces[-1].finish_reason == "stop"


def test_a_session_computes_only_what_is_new(model):
    session = model.session()
    first = session.logits(PROMPT, rows=[-1])
    again = session.logits([*PROMPT, 7, 8], rows=[-1])
    branch = session.logits([*PROMPT[:3], 9], rows=[-1])
    same = session.logits([*PROMPT[:3], 9], rows=[-1])
    assert model.engine.evaluated == [5, 2, 1, 1]  # at least the last token, for its logits
    for got, ids in ((first, PROMPT), (again, [*PROMPT, 7, 8]), (branch, [*PROMPT[:3], 9]), (same, [*PROMPT[:3], 9])):
        np.testing.assert_allclose(got, model.logits(ids, rows=[-1]), atol=1e-5)
    session.close()
    assert not model.engine.live


def test_a_session_generates_on_after_its_own_answer(model):
    session = model.session()
    made = ids_of(session.generate(PROMPT, max_tokens=3, temperature=0, ignore_eos=True))
    list(session.generate([*PROMPT, *made, 11], max_tokens=1, temperature=0, ignore_eos=True))
    # The answer's last token was never computed with.
    assert model.engine.evaluated == [5, 1, 1, 2]


def test_rows_of_logits(model):
    whole = model.logits(PROMPT)
    assert whole.shape == (5, model.n_vocab)
    assert whole.dtype == np.float32
    np.testing.assert_allclose(model.logits(PROMPT, rows=[3, 0, -1, 3]), whole[[3, 0, 4, 3]], atol=1e-6)
    assert model.logits(PROMPT, rows=[]).shape == (0, model.n_vocab)
    for bad in ([5], [-6], [1.5]):
        with pytest.raises(hk.ArgumentError, match="rows"):
            model.logits(PROMPT, rows=bad)
    with pytest.raises(hk.ArgumentError, match="empty"):
        model.logits([])
    with pytest.raises(hk.ArgumentError, match="token id 336"):
        model.logits([336])


def test_two_generators_take_turns(model):
    def alone(prompt):
        return ids_of(model.generate(prompt, max_tokens=5, temperature=0, ignore_eos=True))

    expected = alone(PROMPT), alone(PROMPT[::-1])
    a = model.generate(PROMPT, max_tokens=5, temperature=0, ignore_eos=True)
    b = model.generate(PROMPT[::-1], max_tokens=5, temperature=0, ignore_eos=True)
    pairs = list(zip(a, b, strict=True))
    assert (ids_of(p for p, _ in pairs), ids_of(q for _, q in pairs)) == expected
    assert not model.engine.live


def test_an_abandoned_generator_gives_its_sequence_back(model):
    for taken in (0, 1, 3):
        pieces = model.generate(PROMPT, temperature=0, ignore_eos=True)
        list(itertools.islice(pieces, taken))
        del pieces
        gc.collect()
        assert not model.engine.live


def test_a_lost_session_gives_its_sequence_back(model):
    session = model.session()
    session.logits(PROMPT)
    del session
    gc.collect()
    assert not model.engine.live


def test_a_finaliser_in_the_middle_of_a_call_waits(model):
    session = model.session()
    model.engine.before_step = session.close
    model.logits(PROMPT)
    assert list(model.engine.live) == []


def test_closing_in_the_middle(model):
    pieces = model.generate(PROMPT, temperature=0, ignore_eos=True)
    next(pieces)
    model.close()
    assert model.engine.closed
    with pytest.raises(hk.HybridKernError, match="closed"):
        next(pieces)
    with pytest.raises(hk.HybridKernError, match="closed"):
        model.logits(PROMPT)
    model.close()


def test_an_older_generator_of_a_session_says_that_it_ended(model):
    session = model.session()
    older = session.generate(PROMPT, temperature=0, ignore_eos=True)
    next(older)
    session.logits([1, 2])
    with pytest.raises(hk.HybridKernError, match="asked something else"):
        next(older)


def test_an_interrupted_step_leaves_the_session_usable(model):
    session = model.session()
    session.logits(PROMPT)

    def interrupt():
        raise KeyboardInterrupt

    model.engine.before_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        session.logits([*PROMPT, 7, 8])
    model.engine.before_step = lambda: None
    np.testing.assert_allclose(
        session.logits([*PROMPT, 7, 8], rows=[-1]), model.logits([*PROMPT, 7, 8], rows=[-1]), atol=1e-5
    )


def test_a_fork_goes_its_own_way(model):
    with model.session() as session:
        session.logits(PROMPT)
        with session.fork() as other:
            a, b = session.logits([*PROMPT, 7], rows=[-1]), other.logits([*PROMPT, 8], rows=[-1])
            assert model.engine.evaluated == [5, 1, 1]
    np.testing.assert_allclose(a, model.logits([*PROMPT, 7], rows=[-1]), atol=1e-5)
    np.testing.assert_allclose(b, model.logits([*PROMPT, 8], rows=[-1]), atol=1e-5)
    assert not model.engine.live


def test_calls_from_several_threads_queue(model):
    expected = model.logits(PROMPT)
    results = []
    threads = [threading.Thread(target=lambda: results.append(model.logits(PROMPT))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        np.testing.assert_array_equal(result, expected)
    assert len(results) == 4


def test_a_longrope_model_begins_again_where_its_long_factors_begin(tiny_longrope, monkeypatch):
    monkeypatch.setattr(model_api, "Engine", ReferenceEngine)
    with hk.load(tiny_longrope, n_ctx=64) as model, model.session() as session:
        ids = list(range(5, 37))  # as long as the original context
        session.logits(ids, rows=[-1])
        longer = session.logits([*ids, 40], rows=[-1])
        session.logits([*ids, 40, 41], rows=[-1])
        shorter = session.logits(ids[:20], rows=[-1])
        assert model.engine.evaluated == [32, 33, 1, 20]
        assert model.engine.variants == [0, 1, 1, 0]
        np.testing.assert_allclose(longer, model.logits([*ids, 40], rows=[-1]), atol=1e-5)
        np.testing.assert_allclose(shorter, model.logits(ids[:20], rows=[-1]), atol=1e-5)
        # One that grows past the mark while it generates.
        model.engine.evaluated.clear()
        list(session.generate(ids[:31], max_tokens=4, temperature=0, ignore_eos=True))
        assert model.engine.evaluated[-2:] == [33, 1]
