"""The public interface on tiny models with random weights."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest

import hybridkern as hk

PROMPT = "hello world and then"


@pytest.fixture(scope="module")
def model(tiny_llama):
    with hk.load(tiny_llama, n_ctx=64, threads=1) as loaded:
        yield loaded


def text_of(pieces):
    return "".join(pieces)


def test_a_seed_repeats_and_seeds_differ(model):
    def made(seed):
        return [piece.token_id for piece in model.generate(PROMPT, max_tokens=20, seed=seed, ignore_eos=True, top_k=0)]

    assert made(1) == made(1)
    assert made(1) != made(2)
    assert made(None) != made(None)


def test_temperature_0_ignores_the_seed(model):
    made = {tuple(model.generate(PROMPT, max_tokens=8, temperature=0, seed=seed)) for seed in (1, 2, None)}
    assert len(made) == 1


def test_greedy_with_penalties_leaves_the_greedy_path(model):
    plain = [p.token_id for p in model.generate(PROMPT, max_tokens=12, temperature=0, ignore_eos=True)]
    biased = [
        p.token_id
        for p in model.generate(
            PROMPT, max_tokens=12, temperature=0, ignore_eos=True, logit_bias={plain[0]: -float("inf")}
        )
    ]
    assert biased[0] != plain[0]
    same = [
        p.token_id
        for p in model.generate(PROMPT, max_tokens=12, temperature=0, ignore_eos=True, logit_bias={plain[0]: 0.0})
    ]
    assert same == plain


def test_logprobs_are_the_models(model):
    ids = model.prompt_ids(PROMPT)
    pieces = list(model.generate(ids, max_tokens=4, seed=3, temperature=1.5, ignore_eos=True))
    made = [piece.token_id for piece in pieces]
    rows = model.logits([*ids, *made])[len(ids) - 1 : -1].astype(np.float64)
    for row, piece in zip(rows, pieces, strict=True):
        expected = row[piece.token_id] - row.max() - np.log(np.exp(row - row.max()).sum())
        assert piece.logprob == pytest.approx(expected, abs=1e-4)


def test_pieces_join_to_the_text_of_their_tokens(model):
    pieces = list(model.generate(PROMPT, max_tokens=40, seed=5, ignore_eos=True, show_special=True))
    whole = model.detokenize([*model.prompt_ids(PROMPT), *(piece.token_id for piece in pieces)])
    assert whole.endswith(text_of(pieces))


def test_stop_strings_cut_exactly(model):
    whole = text_of(model.generate(PROMPT, max_tokens=40, seed=5, ignore_eos=True))
    for begin, length in ((3, 1), (5, 4), (10, 7)):
        stop = whole[begin : begin + length]
        pieces = list(model.generate(PROMPT, max_tokens=40, seed=5, ignore_eos=True, stop=["never comes", stop]))
        assert text_of(pieces) == whole[: whole.index(stop)]
        assert pieces[-1].finish_reason == "stop"
        assert all(piece.finish_reason is None for piece in pieces[:-1])
        again = list(model.generate(PROMPT, max_tokens=40, seed=5, ignore_eos=True, stop=stop))
        assert text_of(again) == text_of(pieces)


def test_no_tokens_at_all(model):
    assert list(model.generate(PROMPT, max_tokens=0)) == []


def test_an_empty_prompt_begins_with_bos(model):
    first = next(model.generate("", temperature=0, ignore_eos=True))
    assert first.token_id == model.logits([model.vocabulary.bos_id])[0].argmax()
    assert next(model.generate([], temperature=0, ignore_eos=True)).token_id == first.token_id


def test_an_empty_prompt_without_bos(tmp_path):
    from tiny import write_tiny

    path = write_tiny(tmp_path / "q.gguf", "qwen2", metadata={"tokenizer.ggml.bos_token_id": None}).path
    with hk.load(path, threads=1) as model:
        with pytest.raises(hk.ArgumentError, match="BOS"):
            model.generate("")
        assert next(model.generate("hello", temperature=0)) is not None


def test_a_conversation(model):
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ bos_token }}"
    messages = [{"role": "user", "content": "hello"}]
    pieces = list(model.chat(messages, template=template, max_tokens=5, temperature=0, ignore_eos=True))
    ids = model.tokenize("[user]hello<s>", special=True)
    expected = list(model.generate(ids, max_tokens=5, temperature=0, ignore_eos=True))
    assert text_of(pieces) == text_of(expected)
    with pytest.raises(hk.TokenizerError, match="no chat template"):
        model.chat(messages)
    with pytest.raises(hk.TokenizerError, match="not today"):
        model.chat(messages, template="{{ raise_exception('not today') }}")
    with pytest.raises(hk.ArgumentError, match="empty"):
        model.chat([], template=template)


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": -1},
        {"max_tokens": 1.5},
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 1.5},
        {"min_p": 2},
        {"typical_p": -1},
        {"repeat_penalty": 0},
        {"repeat_last_n": -2},
        {"mirostat": 3},
        {"seed": -1},
        {"stop": [""]},
        {"stop": 3},
        {"stop": b"3"},
        {"logit_bias": {-1: 1.0}},
    ],
    ids=str,
)
def test_arguments_of_generation_are_checked_at_once(model, options):
    with pytest.raises(hk.ArgumentError, match=next(iter(options))):
        model.generate(PROMPT, **options)


def test_an_unknown_argument_is_a_type_error(model):
    with pytest.raises(TypeError, match="unexpected keyword argument 'temprature'; there are max_tokens"):
        model.generate(PROMPT, temprature=1)


@pytest.mark.parametrize(
    "options",
    [
        {"n_ctx": 0},
        {"n_ctx": 1},
        {"n_ctx": -5},
        {"n_ctx": "many"},
        {"threads": 0},
        {"threads": -1},
        {"threads_batch": 100_000},
        {"n_batch": 0},
        {"n_batch": -1},
        {"n_ubatch": 0},
        {"kv_type": "q5_0"},
        {"sha256": "abc"},
    ],
    ids=str,
)
def test_arguments_of_load_are_checked(tiny_llama, options):
    with pytest.raises(hk.ArgumentError, match=next(iter(options))):
        hk.load(tiny_llama, **options)


def test_context_sizes(tiny_llama):
    with hk.load(tiny_llama, threads=1) as model:
        assert model.n_ctx == 256
    with hk.load(tiny_llama, n_ctx="model", threads=1) as model:
        assert model.n_ctx == 256
    with pytest.warns(UserWarning, match=r"300.*256"), hk.load(tiny_llama, n_ctx=300, threads=1) as model:
        assert model.n_ctx == 300
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hk.load(tiny_llama, n_ctx=256, threads=1).close()


def test_the_same_prompt_with_two_context_sizes(tiny_llama):
    rows = []
    for n_ctx in (32, 256):
        with hk.load(tiny_llama, n_ctx=n_ctx, threads=1) as model:
            rows.append(model.logits([1, 70, 80, 90]))
    np.testing.assert_array_equal(*rows)


def test_loading_and_closing_many_times(tiny_llama):
    for _ in range(20):
        with hk.load(tiny_llama, threads=1, n_ctx=32) as model:
            next(model.generate(PROMPT))


def test_description_and_repr(model):
    assert "CPU" in model.describe() or "yardstick" in model.describe()
    assert "llama.gguf" in repr(model)


def test_what_is_no_text_and_no_rows(model):
    with pytest.raises(hk.ArgumentError, match="text is 3"):
        model.tokenize(3)
    with pytest.raises(hk.ArgumentError, match="rows = -1"):
        model.logits([1, 70], rows=-1)


def test_pieces_are_strings():
    piece = hk.Piece("text", 7, -0.5, "stop")
    assert piece == "text"
    assert (piece.token_id, piece.logprob, piece.finish_reason) == (7, -0.5, "stop")
    again = pickle.loads(pickle.dumps(piece))
    assert (again, again.token_id, again.logprob, again.finish_reason) == ("text", 7, -0.5, "stop")
