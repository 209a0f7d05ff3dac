"""Pre-tokenizers: ids under every name against the reference, and words that can be checked by eye."""

from __future__ import annotations

import warnings

import pytest
from conftest import bpe_metadata, golden

from hybridkern.text import TokenizerWarning, Vocabulary
from hybridkern.text.bpe import BpeModel
from hybridkern.text.fields import VocabularyFields
from hybridkern.text.pretokenizers import PRE_TOKENIZERS


@pytest.mark.real_model
@pytest.mark.parametrize("name", sorted(golden("pretokenizers.json")["ids"]))
def test_ids_under_every_name(name: str, smollm_metadata: dict[str, object]) -> None:
    cases = golden("pretokenizers.json")
    vocabulary = Vocabulary.from_metadata(smollm_metadata | {"tokenizer.ggml.pre": name})
    for text, ids in zip(cases["texts"], cases["ids"][name], strict=True):
        # BOS is not the pre-tokenizer's business, but some names bring it.
        assert vocabulary.encode(text) == ids, text


def words(pre: str, text: str) -> list[str]:
    fields = VocabularyFields.from_metadata(bpe_metadata(pre, add_bos_token=False))
    return BpeModel(fields, {token: i for i, token in enumerate(fields.tokens)}).words(text)


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_no_character_is_lost(name: str) -> None:
    text = "I'LL pay 12345 €,\r\n  then\t 漢字かな१२३ go!?\n\n\n   ok  "
    assert "".join(words(name, text)) == text


@pytest.mark.parametrize(
    ("names", "text", "expected"),
    [
        ("gpt-2 mpt olmo", "it's 1234 a", ["it", "'s", " 1234", " a"]),
        ("gpt-2 smollm", "a   b", ["a", "  ", " b"]),
        ("gpt-2", "I'M", ["I", "'", "M"]),
        ("smollm starcoder refact command-r", "x 123", ["x", " ", "1", "2", "3"]),
        ("llama-bpe dbrx gpt-4o", "1234567", ["123", "456", "7"]),
        ("llama-bpe", "I'LL $5!\n\n go", ["I", "'LL", " $", "5", "!\n\n", " go"]),
        ("llama-bpe qwen2", "a(b\tc", ["a", "(b", "\tc"]),
        ("qwen2 stablelm2 tekken", "123", ["1", "2", "3"]),
        ("falcon", "a== 12345", ["a", "==", " ", "123", "45"]),
        ("deepseek-llm", "a 123漢字\r\n", ["a", " ", "123", "漢字", "\r", "\n"]),
        ("deepseek-coder", "ab 12, c", ["ab", " ", "1", "2", ",", " c"]),
        ("gpt-4o tekken", "camelCase", ["camel", "Case"]),
        ("gpt-4o", "HTTPServer's", ["HTTPServer's"]),
        ("deepseek-v3", "1234 .foo", ["123", "4", " .", "foo"]),
    ],
)
def test_words(names: str, text: str, expected: list[str]) -> None:
    for name in names.split():
        assert words(name, text) == expected, name


@pytest.mark.parametrize("pre", ["no-such-name", None])
def test_an_unknown_name_warns_and_works(pre: str | None) -> None:
    with pytest.warns(TokenizerWarning, match="tokenizer.ggml.pre .*the default pre-tokenizer is used"):
        vocabulary = Vocabulary.from_metadata(bpe_metadata() | {"tokenizer.ggml.pre": pre})
    assert vocabulary.decode(vocabulary.encode("hello 12345")) == "hello 12345"


def test_known_names_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in PRE_TOKENIZERS:
            Vocabulary.from_metadata(bpe_metadata(name, add_bos_token=False))


def test_ignore_merges_takes_a_whole_word() -> None:
    extra = (("lo", 1), ("xyz", 1))
    assert Vocabulary.from_metadata(bpe_metadata("llama-bpe", extra, add_bos_token=False)).encode("xyz") == [259]
    assert Vocabulary.from_metadata(bpe_metadata("qwen2", extra)).encode("xyz") == [ord(c) for c in "xyz"]


def test_merges_that_lead_nowhere_are_left_out_loudly() -> None:
    with pytest.warns(TokenizerWarning, match="1 of 3 merges"):
        vocabulary = Vocabulary.from_metadata(bpe_metadata() | {"tokenizer.ggml.merges": ["h e", "he l", "x y"]})
    assert vocabulary.encode("hel xy") == [257, 32, ord("x"), ord("y")]
