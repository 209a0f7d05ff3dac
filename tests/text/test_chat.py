"""Chat templates: what they write, and what they cannot do."""

from __future__ import annotations

import time

import pytest
from conftest import bpe_metadata

from hybridkern.errors import ArgumentError, TokenizerError
from hybridkern.text import ChatTemplate, Vocabulary

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def with_bos() -> Vocabulary:
    keys = {"bos_token_id": 258, "eos_token_id": 259, "add_bos_token": True}
    return Vocabulary.from_metadata(bpe_metadata(extra=(("<s>", 3), ("</s>", 3)), **keys))


def render(vocabulary: Vocabulary, source: str, messages: object = HI, **keys: object) -> str:
    return ChatTemplate(source, vocabulary).render(messages, **keys)  # type: ignore[arg-type]


@pytest.mark.real_model
def test_the_template_of_a_real_model(smollm: Vocabulary) -> None:
    chat = ChatTemplate.of(smollm)
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    expected = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert chat.render(HI) == expected
    ids = chat.encode_chat(HI)
    assert ids == smollm.encode(expected, special=True)
    assert ids.count(smollm.token_id("<|im_start|>")) == 3  # type: ignore[arg-type]
    assert chat.render(HI, add_generation_prompt=False).endswith("hi<|im_end|>\n")


def test_blocks_leave_no_white_space(with_bos: Vocabulary) -> None:
    source = (
        "{% for m in messages %}\n    {% if true %}\n{{ m.role }}: {{ m['content'] }}\n    {% endif %}\n{% endfor %}\n"
    )
    assert render(with_bos, source) == "user: hi\n"


def test_variables_and_functions(with_bos: Vocabulary) -> None:
    assert render(with_bos, "{{ bos_token }}{{ eos_token }}{{ unk_token }}") == "<s></s>"
    assert render(with_bos, "{{ add_generation_prompt }}{{ tools }}{{ x }}", x=3) == "TrueNone3"
    assert render(with_bos, "{{ strftime_now('%Y') | length }}") == "4"
    assert render(with_bos, "{{ messages | tojson }}", [{"role": "user", "content": "<é>&'"}]) == (
        '[{"role": "user", "content": "<é>&\'"}]'
    )
    assert render(with_bos, "{{ {'a': [1]} | tojson(indent=2) }}") == '{\n  "a": [\n    1\n  ]\n}'
    assert render(with_bos, "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render(with_bos, "a{% generation %}b{{ messages[0].content }}{% endgeneration %}") == "abhi"


def test_exactly_one_bos(with_bos: Vocabulary) -> None:
    for source in ("{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}", "<s><s>hi"):
        assert ChatTemplate(source, with_bos).encode_chat(HI) == [258, ord("h"), ord("i")]
    without = Vocabulary.from_metadata(bpe_metadata(extra=(("<s>", 3),), bos_token_id=258))
    assert ChatTemplate("{{ bos_token }}hi", without).encode_chat(HI) == [258, ord("h"), ord("i")]
    assert ChatTemplate("hi", without).encode_chat(HI) == [ord("h"), ord("i")]


def test_a_template_that_raises(with_bos: Vocabulary) -> None:
    chat = ChatTemplate("{{ raise_exception('System role not supported') }}", with_bos)
    for _ in range(2):
        with pytest.raises(TokenizerError, match="refuses these messages: System role not supported"):
            chat.render(HI)


@pytest.mark.parametrize(
    "source",
    [
        "{{ nothing.at.all }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages[0].__init__.__globals__ }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ ([1] * 1000000) * 1000000 }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{{ 'x'.ljust(10000000000) }}",
        "{% for i in range(99999) %}{{ 'x' * 100000 }}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 1 // 0 }}",
        "{% include 'other' %}",
    ],
)
def test_what_a_template_cannot_do(with_bos: Vocabulary, source: str) -> None:
    start = time.perf_counter()
    with pytest.raises(TokenizerError, match="chat template"):
        ChatTemplate(source, with_bos, time_limit_s=1.0).render(HI)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("source", ["{% for %}", "{{", "{% unknown %}", "{% if x %}"])
def test_an_invalid_template(with_bos: Vocabulary, source: str) -> None:
    with pytest.raises(TokenizerError, match="not valid at line 1"):
        ChatTemplate(source, with_bos)


def test_a_missing_template(with_bos: Vocabulary) -> None:
    with pytest.raises(TokenizerError, match="--chat-template"):
        ChatTemplate.of(with_bos)
    assert ChatTemplate.of(with_bos, "ok").render(HI) == "ok"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hi", "must be a list"),
        ({"role": "user", "content": "hi"}, "must be a list"),
        ([], "is empty"),
        (["hi"], r"messages\[0\] must be a dict"),
        ([{"content": "hi"}], r"messages\[0\] has no role"),
        ([*HI, {"role": "user"}], r"messages\[1\] has no content"),
        ([{"role": "user", "content": 3}], r"messages\[0\] has no content"),
    ],
)
def test_bad_messages(with_bos: Vocabulary, messages: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        render(with_bos, "x", messages)


def test_a_message_that_calls_tools_needs_no_content(with_bos: Vocabulary) -> None:
    assert render(with_bos, "x", [*HI, {"role": "assistant", "tool_calls": [{"name": "f"}]}]) == "x"
