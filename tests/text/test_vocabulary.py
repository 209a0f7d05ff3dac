"""Token ids against the reference engine's (golden/), and what must hold for every vocabulary."""

from __future__ import annotations

import contextlib
import time
import warnings

import numpy as np
import pytest
from conftest import bpe_metadata, golden
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridkern.errors import TokenizerError
from hybridkern.text import TokenizerWarning, Vocabulary

LONG_TEXTS = {
    "one letter": "a" * 131_072,
    "CJK": "中" * 30_000,
    "many CJK": "".join(chr(0x4E00 + i % 8000) for i in range(30_000)),
    "full stops": "." * 30_000,
    "spaces": " " * 30_000 + "x",
    "newlines": "\n" * 30_000,
    "digits": "7" * 30_000,
    "quotes": "'" * 30_000,
    "special prefixes": "<unused" * 20_000,
}


def assert_ids(vocabulary: Vocabulary, rows: list[dict], differs: frozenset[str] = frozenset()) -> None:
    for row in rows:
        for mode, special in (("plain", False), ("special", True)):
            if row["text"] in differs and mode == "plain":
                continue
            assert vocabulary.encode(row["text"], special=special) == row[mode], (mode, row["text"])


def assert_round_trip(vocabulary: Vocabulary, text: str) -> None:
    for special in (False, True):
        ids = vocabulary.encode(text, special=special)
        body = ids[1:] if vocabulary.add_bos else ids
        # SentencePiece writes a space as U+2581, so in such a vocabulary the two cannot be told apart.
        expected = text.replace("\u2581", " ") if vocabulary.kind == "spm" else text
        assert vocabulary.decode(body) == expected


@pytest.mark.real_model
def test_gemma_ids(gemma: Vocabulary) -> None:
    rows = golden("gemma3.json")
    assert_ids(gemma, rows)
    for row in rows:
        assert_round_trip(gemma, row["text"])


@pytest.mark.real_model
def test_gemma_ids_with_space_prefix(gemma_metadata: dict[str, object]) -> None:
    vocabulary = Vocabulary.from_metadata(gemma_metadata | {"tokenizer.ggml.add_space_prefix": True})
    rows = golden("gemma3_space_prefix.json")
    assert_ids(vocabulary, rows)
    for row in rows:
        assert_round_trip(vocabulary, row["text"])


@pytest.mark.real_model
def test_smollm_ids(smollm: Vocabulary) -> None:
    rows = golden("smollm2.json")
    assert_ids(smollm, rows)
    for row in rows:
        assert_round_trip(smollm, row["text"])


@pytest.mark.real_model
def test_end_tokens_of_real_models(gemma: Vocabulary, smollm: Vocabulary) -> None:
    assert {gemma.tokens[i] for i in gemma.end_ids} == {"<eos>", "<end_of_turn>", "</s>"}
    assert {smollm.tokens[i] for i in smollm.end_ids} == {"<|endoftext|>", "<|im_end|>", "<reponame>"}


@pytest.mark.parametrize("name", ["prefix", "no_prefix"])
def test_handmade_spm_ids(name: str) -> None:
    case = golden("spm_handmade.json")[name]
    vocabulary = Vocabulary.from_metadata(case["metadata"])
    # In these two the reference lets the merges run into a control token ("<" + "s>"), although special tokens were
    # not asked for. Here, as in SentencePiece itself, a text cannot smuggle one in.
    differs = frozenset({"a<s> b", "<s>a</s> <unk> b"})
    assert_ids(vocabulary, case["ids"], differs)
    for row in case["ids"]:
        assert_round_trip(vocabulary, row["text"])
    for text in differs:
        assert not vocabulary.hidden_ids.intersection(vocabulary.encode(text, bos=False))


@pytest.mark.real_model
@pytest.mark.parametrize("kind", ["gemma", "smollm"])
@pytest.mark.parametrize("name", LONG_TEXTS)
def test_long_uniform_texts_take_linear_time(kind: str, name: str, request: pytest.FixtureRequest) -> None:
    vocabulary: Vocabulary = request.getfixturevalue(kind)
    text = LONG_TEXTS[name]

    def seconds(part: str) -> float:
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            vocabulary.encode(part, special=True)
            best = min(best, time.process_time() - start)
        return best

    # Quadratic time would be a factor of 16; the constant absorbs what short measurements scatter.
    assert seconds(text) < 8 * seconds(text[: len(text) // 4]) + 0.05
    ids = vocabulary.encode(text, special=True, bos=False)
    assert vocabulary.decode(ids) == text


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60) | st.text("a <s>/h el\u2581\n\u00e9中<tool>", max_size=60))
def test_round_trip_of_any_text(spm: Vocabulary, tiny_bpe: Vocabulary, text: str) -> None:
    assert_round_trip(spm, text)
    assert_round_trip(tiny_bpe, text)


def test_decode_skips_control_tokens(tiny_bpe: Vocabulary) -> None:
    ids = tiny_bpe.encode("<|im_start|>hello<tool><|im_end|>", special=True)
    assert ids == [258, 257, ord("l"), ord("o"), 260, 259]
    assert tiny_bpe.decode(ids) == "<|im_start|>hello<tool><|im_end|>"
    assert tiny_bpe.decode(ids, skip_special=True) == "hello<tool>"
    assert tiny_bpe.is_end(259) and not tiny_bpe.is_end(258)


def test_user_defined_tokens_are_always_found(tiny_bpe: Vocabulary) -> None:
    assert tiny_bpe.encode("a<tool><|im_end|>")[:2] == [ord("a"), 260]
    assert 259 not in tiny_bpe.encode("a<tool><|im_end|>")


def test_longer_special_tokens_go_first() -> None:
    vocabulary = Vocabulary.from_metadata(bpe_metadata(extra=(("ab", 4), ("bcd", 4), ("bcde", 3))))
    assert vocabulary.encode("abcd") == [ord("a"), 259]
    assert vocabulary.encode("abcdeab", special=True) == [ord("a"), 260, 258]
    assert vocabulary.encode("abcdeab") == [ord("a"), 259, ord("e"), 258]


def test_a_thousand_special_tokens_of_one_family() -> None:
    extra = tuple((f"<unused{i}>", 3) for i in range(1000))
    vocabulary = Vocabulary.from_metadata(bpe_metadata(extra=extra))
    text = "".join(f"<unused{i}>x" for i in range(0, 1200, 7))
    ids = vocabulary.encode(text, special=True)
    assert [i - 258 for i in ids if i >= 258] == list(range(0, 1000, 7))
    assert vocabulary.decode(ids) == text


def test_bos_and_eos() -> None:
    keys = {"bos_token_id": 258, "eos_token_id": 259, "add_bos_token": True, "add_eos_token": True}
    vocabulary = Vocabulary.from_metadata(bpe_metadata(extra=(("<s>", 3), ("</s>", 3)), **keys))
    assert vocabulary.encode("") == [258, 259]
    assert vocabulary.encode("a") == [258, 97, 259]
    assert vocabulary.encode("a", bos=True) == [258, 97]
    assert vocabulary.encode("a", bos=False) == [97]
    with pytest.raises(TokenizerError, match="no BOS"):
        Vocabulary.from_metadata(bpe_metadata()).encode("a", bos=True)


def test_duplicate_tokens_first_id_wins(spm_metadata: dict[str, object]) -> None:
    bpe = Vocabulary.from_metadata(bpe_metadata(extra=(("he", 1), ("he", 1))))
    assert bpe.encode("he") == [256]
    assert bpe.decode([256, 258, 259]) == "hehehe"
    doubled = {}
    for key, more in (("tokens", ["he", ""]), ("scores", [5.0, 0.0]), ("token_type", [1, 1])):
        doubled[f"tokenizer.ggml.{key}"] = [*spm_metadata[f"tokenizer.ggml.{key}"], *more]  # type: ignore[misc]
    vocabulary = Vocabulary.from_metadata(spm_metadata | doubled)
    first = vocabulary.token_id("he")
    assert vocabulary.encode("ahe", bos=False)[-1] == first
    assert vocabulary.piece_bytes(vocabulary.n_tokens - 2) == b"he"


def test_numpy_metadata_is_welcome(spm_metadata: dict[str, object], spm: Vocabulary) -> None:
    arrays = dict(spm_metadata)
    arrays["tokenizer.ggml.scores"] = np.array(arrays["tokenizer.ggml.scores"], dtype=np.float32)
    arrays["tokenizer.ggml.token_type"] = np.array(arrays["tokenizer.ggml.token_type"], dtype=np.int32)
    arrays["tokenizer.ggml.bos_token_id"] = np.uint32(1)
    assert Vocabulary.from_metadata(arrays).encode("the text") == spm.encode("the text")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "t5"}, "'t5'.*known models: gpt2, llama"),
        ({"tokenizer.ggml.model": None}, "is missing; known models"),
        ({"tokenizer.ggml.tokens": None}, "holds no vocabulary"),
        ({"tokenizer.ggml.tokens": []}, "is empty"),
        ({"tokenizer.ggml.tokens": ["a", 3]}, r"tokens\[1\] is int"),
        ({"tokenizer.ggml.merges": ["ab"]}, r"merges\[0\] is 'ab'"),
        ({"tokenizer.ggml.merges": None}, "merges is missing"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "2 entries for 258 tokens"),
        ({"tokenizer.ggml.token_type": [9] * 258}, r"token_type\[0\] is 9"),
        ({"tokenizer.ggml.eos_token_id": "x"}, "is 'x', but a token id is wanted"),
    ],
)
def test_bad_metadata(change: dict[str, object], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        Vocabulary.from_metadata(bpe_metadata() | change)


#: A value of every kind that a metadata key can have.
VALUES: tuple[object, ...] = (
    0, -1, 2**63, True, 0.5, float("nan"), float("inf"), "", "text", "\udcff", [], ["a", "b"],
    ["a b", "\udcff \udcfe"], [[1], [2, 3]], [["a"]], np.zeros(0, np.int32), np.full(400, 7, np.uint8),
    np.full(400, np.nan, np.float32), np.full(400, np.inf, np.float32), np.full(400, 2**63, np.uint64),
    np.full(400, True), np.arange(3.0),
)  # fmt: skip
KEYS = (
    "ggml.model", "ggml.pre", "ggml.tokens", "ggml.token_type", "ggml.scores", "ggml.merges", "ggml.bos_token_id",
    "ggml.fim_pad_token_id", "ggml.add_bos_token", "ggml.add_eos_token", "ggml.add_space_prefix", "chat_template",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::hybridkern.text.fields.TokenizerWarning")
@pytest.mark.parametrize("kind", ["bpe", "spm"])
@pytest.mark.parametrize("key", [f"tokenizer.{key}" for key in KEYS] + ["general.name"])
def test_keys_of_every_type(spm_metadata: dict[str, object], kind: str, key: str) -> None:
    """A vocabulary that works, or an error that names a key: a file may give any key any type."""
    good = bpe_metadata() if kind == "bpe" else dict(spm_metadata)
    outcomes = []
    for value in VALUES:
        try:
            vocabulary = Vocabulary.from_metadata(good | {key: value})
        except TokenizerError as e:
            outcomes.append(False)
            assert "tokenizer." in str(e) or "general.name" in str(e)
            str(e).encode()
        else:
            outcomes.append(True)
            with contextlib.suppress(TokenizerError):  # characters that a small vocabulary cannot express
                text = vocabulary.decode(vocabulary.encode("hello a", bos=False))
                assert text == "hello a" or key == "tokenizer.ggml.tokens"
    assert not all(outcomes) or key.endswith(("scores", "merges", "add_space_prefix")), "nothing was refused"


def test_tokens_that_are_no_utf8() -> None:
    """They cannot be found in a text, and stand for their bytes where a model makes them."""
    bad = b"h\xff".decode("utf-8", "surrogateescape")
    metadata = bpe_metadata(extra=((bad, 1), (bad + "x", 4)))
    metadata["tokenizer.ggml.merges"] = ["h e", f"h {bad}", "he l"]
    with pytest.warns(TokenizerWarning, match="1 of 3 merges"):
        vocabulary = Vocabulary.from_metadata(metadata)
    assert vocabulary.encode("hel") == [257]
    assert vocabulary.piece_bytes(258) == b"h\xff" and vocabulary.decode([258]) == "h\ufffd"


def test_bad_spm_scores(spm_metadata: dict[str, object]) -> None:
    with pytest.raises(TokenizerError, match="scores is missing"):
        Vocabulary.from_metadata(spm_metadata | {"tokenizer.ggml.scores": None})
    scores = list(spm_metadata["tokenizer.ggml.scores"])  # type: ignore[call-overload]
    scores[7] = float("nan")
    with pytest.raises(TokenizerError, match=r"scores\[7\] is NaN"):
        Vocabulary.from_metadata(spm_metadata | {"tokenizer.ggml.scores": scores})


def test_an_id_outside_the_vocabulary_is_ignored_loudly() -> None:
    with pytest.warns(TokenizerWarning, match="eos_token_id is 4294967295"):
        vocabulary = Vocabulary.from_metadata(bpe_metadata(eos_token_id=0xFFFFFFFF))
    assert vocabulary.eos_id is None


def test_a_byte_without_token_is_an_error_not_a_gap() -> None:
    metadata = bpe_metadata()
    metadata["tokenizer.ggml.tokens"][ord("q")] = "qq"  # type: ignore[index]
    vocabulary = Vocabulary.from_metadata(metadata)
    assert vocabulary.encode("abc") == [97, 98, 99]
    with pytest.raises(TokenizerError, match="byte 0x71"):
        vocabulary.encode("aq")


def test_spm_without_byte_tokens_or_unknown_token() -> None:
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["▁", "a", "b"],
        "tokenizer.ggml.scores": [0.0, -1.0, -2.0],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.unknown_token_id": -1,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TokenizerWarning)
        vocabulary = Vocabulary.from_metadata(metadata)
    assert vocabulary.decode(vocabulary.encode("ab ba")) == "ab ba"
    with pytest.raises(TokenizerError, match="cannot express"):
        vocabulary.encode("x")


def test_lone_surrogates_and_wrong_ids(spm: Vocabulary) -> None:
    with pytest.raises(TokenizerError, match=r"U\+DC80 at character 2"):
        spm.encode("ab\udc80")
    with pytest.raises(TokenizerError, match="token id 100000 is outside"):
        spm.decode([100000])
    with pytest.raises(TokenizerError, match="token id -1"):
        spm.piece_bytes(-1)


def test_phi3_special_tokens_swallow_white_space() -> None:
    metadata = bpe_metadata(extra=(("<|user|>", 3), ("<s>", 3))) | {"general.name": "Phi-3-mini"}
    vocabulary = Vocabulary.from_metadata(metadata)
    assert vocabulary.encode("<|user|>\n a<s> b", special=True) == [258, 97, 259, 32, 98]


def test_end_token_names() -> None:
    texts = ("<|return|>", "<|call|>", "<|end|>", "<|eot_id|>")
    harmony = Vocabulary.from_metadata(bpe_metadata(extra=tuple((text, 3) for text in texts)))
    assert {harmony.tokens[i] for i in harmony.end_ids} == {"<|return|>", "<|call|>", "<|eot_id|>"}
    phi = Vocabulary.from_metadata(bpe_metadata(extra=(("<|end|>", 1),), eot_token_id=97))
    assert phi.end_ids == {97, 258}
    # An end-of-turn token that the file calls normal is a control token all the same.
    assert phi.encode("<|end|>", special=True) == [258]
    assert phi.decode([258], skip_special=True) == ""
