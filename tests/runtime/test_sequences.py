"""Sequences over the paged cache: sharing, cutting, forking, filling up."""

from __future__ import annotations

import numpy as np
import pytest

from hybridkern.errors import ArgumentError, ContextError, HybridKernError, SamplingError
from hybridkern.kernels.interface import Batch

IDS = np.random.default_rng(2).integers(3, 300, 700)


def test_interleaved_sequences_equal_each_alone(tiny, engine):
    model = tiny("llama", type="Q4_K", context=1024)
    e = engine(model)
    alone = [e.evaluate(e.new_sequence(), ids, "all") for ids in (IDS[:150], IDS[200:330])]
    e = engine(model)
    a, b = e.new_sequence(), e.new_sequence()
    rows = {a: [], b: []}
    for at in range(0, 130, 13):
        tokens = np.concatenate([IDS[at : at + 13], IDS[200 + at : 213 + at]])
        positions = np.tile(np.arange(at, at + 13), 2)
        batch = Batch(tokens, positions, np.repeat([a, b], 13), np.arange(26))
        logits = e.step(batch)
        rows[a].append(logits[:13].copy())
        rows[b].append(logits[13:].copy())
    assert np.concatenate(rows[a]).tobytes() == alone[0][:130].tobytes()
    assert np.concatenate(rows[b]).tobytes() == alone[1].tobytes()


def test_evaluate_many_equals_each_alone(tiny, engine):
    model = tiny("gemma3", type="Q8_0", context=1024)
    e = engine(model, n_ubatch=50)
    work = [IDS[:120], IDS[300:303], IDS[400:460]]
    alone = []
    for ids in work:
        s = e.new_sequence()
        alone.append(e.evaluate(s, ids).copy())
        e.free(s)
    sequences = [e.new_sequence() for _ in work]
    together = e.evaluate_many(list(zip(sequences, work, strict=True)))
    assert together.tobytes() == np.concatenate(alone).tobytes()
    assert [e.length(s) for s in sequences] == [120, 3, 60]


@pytest.mark.parametrize("cut", [1, 127, 128, 129, 256, 299])
def test_truncate_and_go_on(tiny, engine, cut):
    model = tiny("llama", context=1024)
    e = engine(model)
    s = e.new_sequence()
    whole = e.evaluate(s, IDS[:300], "all")
    e.truncate(s, cut)
    e._cache.poison()
    assert e.length(s) == cut
    assert e.evaluate(s, IDS[cut:300], "all").tobytes() == whole[cut:].tobytes()


@pytest.mark.parametrize("at", [1, 128, 200])
def test_fork_shares_and_parts(tiny, engine, at):
    model = tiny("llama", context=1024)
    e = engine(model)
    other = np.concatenate([IDS[:at], IDS[500:600]])
    fresh = e.new_sequence()
    want_a, want_b = e.evaluate(fresh, IDS[: at + 100]).copy(), None
    e.truncate(fresh, 0)
    want_b = e.evaluate(fresh, other).copy()
    e.free(fresh)
    a = e.new_sequence()
    e.evaluate(a, IDS[:at], "none")
    free = e._cache.free_pages
    b = e.fork(a)
    assert e._cache.free_pages == free
    got_b = e.evaluate(b, other[at:]).copy()
    assert e.evaluate(a, IDS[at : at + 100]).tobytes() == want_a.tobytes()
    assert got_b.tobytes() == want_b.tobytes()
    e.free(a)
    e.free(b)
    assert e._cache.free_pages == e._cache.n_pages


def test_a_full_cache_says_so_and_changes_nothing(tiny, engine):
    e = engine(tiny("llama", context=1024), n_kv_pages=3)
    a, b = e.new_sequence(), e.new_sequence()
    e.evaluate(a, IDS[:200], "none")
    with pytest.raises(ContextError, match="3 pages of 128 tokens, 1 free, 2 needed"):
        e.evaluate(b, IDS[:129])
    assert e.length(b) == 0
    e.evaluate(b, IDS[:128], "none")
    with pytest.raises(ContextError):
        e.greedy(b, 5)
    assert e.length(b) == 128
    e.free(a)
    e.greedy(b, 5)


def test_a_full_context_names_both_numbers(tiny, engine):
    e = engine(tiny("llama", context=1024), n_ctx=100)
    s = e.new_sequence()
    with pytest.raises(ContextError, match=r"101 tokens .* context of 100"):
        e.evaluate(s, IDS[:101])
    e.evaluate(s, IDS[:100], "none")
    with pytest.raises(ContextError, match="100"):
        e.greedy(s, 3)
    assert e.length(s) == 100


def test_an_error_in_the_middle_restores_the_sequence(tiny, engine):
    e = engine(tiny("llama", context=1024), n_kv_pages=2, n_ubatch=64)
    s = e.new_sequence()
    first = e.evaluate(s, IDS[:10]).copy()
    with pytest.raises(ContextError):
        e.evaluate(s, IDS[10:300])
    assert e.length(s) == 10
    e.truncate(s, 0)
    assert e.evaluate(s, IDS[:10]).tobytes() == first.tobytes()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda e, s: e.evaluate(s, [1, 336]), "outside the vocabulary of 336"),
        (lambda e, s: e.evaluate(s, [-1]), "outside the vocabulary"),
        (lambda e, s: e.greedy(s, 336), "outside the vocabulary"),
        (lambda e, s: e.greedy(s, []), "nothing to continue"),
        (lambda e, s: e.evaluate(s, [0.5]), "integers"),
        (lambda e, s: e.evaluate(s, [1, 2], [2]), "rows from 0 to 1"),
        (lambda e, s: e.evaluate(s, [1, 2], [1, 0]), "ascending"),
        (lambda e, s: e.evaluate(s, [1, 2], "first"), "'first'"),
        (lambda e, s: e.evaluate(3, [1]), "no sequence 3"),
        (lambda e, s: e.evaluate(-1, [1]), "no sequence -1"),
        (lambda e, s: e.greedy(9999, 1), "no sequence 9999"),
        (lambda e, s: e.truncate(s, 1), "0 tokens"),
        (lambda e, s: e.evaluate_many([(s, [1]), (s, [2])]), "twice"),
        (lambda e, s: e.step(Batch(np.array([1]), np.array([1]), np.array([s]), np.array([0]))), "do not continue"),
        (lambda e, s: e.step(Batch(np.array([]), np.array([]), np.array([]), np.array([]))), "0 tokens"),
    ],
)
def test_wrong_arguments(tiny, engine, call, error):
    e = engine(tiny("llama"), n_ctx=256)
    s = e.new_sequence()
    with pytest.raises(ArgumentError, match=error):
        call(e, s)
    assert e.length(s) == 0


def test_wrong_options(tiny, engine):
    model = tiny("llama")
    for options, error in (
        ({"n_ctx": 0}, "n_ctx"),
        ({"n_batch": 0}, "n_batch"),
        ({"threads": 0}, "threads"),
        ({"threads": 257}, "threads"),
        ({"kv_type": "q5_0"}, "f16, q8_0, q4_0, f32"),
        ({"kv_type": "q8_0"}, "head sizes that 32 divides; block 0 has 16"),
    ):
        with pytest.raises(ArgumentError, match=error):
            engine(model, **options)


def test_too_many_sequences(tiny, engine):
    e = engine(tiny("llama"), n_seq=2)
    e.new_sequence()
    e.new_sequence()
    with pytest.raises(ContextError, match="all 2 sequences"):
        e.new_sequence()


def test_nothing_works_after_close(tiny, engine):
    e = engine(tiny("llama"))
    s = e.new_sequence()
    kept = e.evaluate(s, [1, 2])
    e.close()
    e.close()
    e.cancel()
    assert np.isfinite(kept).all()
    for call in (lambda: e.evaluate(s, [1]), lambda: e.greedy(s, 1), e.new_sequence, lambda: e.free(s)):
        with pytest.raises(HybridKernError, match="closed"):
            call()


def test_nan_logits_are_no_token(tiny, engine):
    model = tiny("llama", seed=5)
    e = engine(model, kv_type="f32")
    s = e.new_sequence()
    e.evaluate(s, [1, 2, 3], "none")
    for page in range(e._cache.n_pages):
        e._cache.memory.fill_page(page, 0xFF)  # keys of NaN
    with pytest.raises(SamplingError, match="NaN"):
        e.greedy(s, 4)
