"""Chat templates: what they write, and what they cannot do."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import bpe_metadata

from hybridkern.errors import ArgumentError, TokenizerError
from hybridkern.text import ChatTemplate, Vocabulary
from hybridkern.text.rendering import RENDERER

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
        "{{ 9 ** 9 ** 9 ** 9 ** 9 ** 9 ** 9 ** 9 ** 9 ** 9 }}",
        "{{ 'x'.ljust(10000000000) }}",
        "{% for i in range(99999) %}{{ 'x' * 100000 }}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 1 // 0 }}",
        "{% include 'other' %}",
        # One operation, in C: nothing in the same process could interrupt it or bound what it allocates.
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ 'x' | center(10 ** 10) }}",
        "{{ ('a' * 1048576).replace('a', 'b' * 1048576) }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x=1) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(n=77) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    ],
)
def test_what_a_template_cannot_do(with_bos: Vocabulary, source: str) -> None:
    start = time.perf_counter()
    with pytest.raises(TokenizerError, match="chat template"):
        ChatTemplate(source, with_bos, time_limit_s=0.5).render(HI)
    assert time.perf_counter() - start < 5
    assert render(with_bos, "{{ 1 + 1 }}") == "2"  # whatever happened to its process


def test_a_process_that_dies(with_bos: Vocabulary) -> None:
    chat = ChatTemplate("{{ messages[0].content }}", with_bos)
    process = RENDERER._process
    assert process is not None
    os.kill(process._child.pid, signal.SIGKILL)
    with pytest.raises(TokenizerError, match="SIGKILL"):
        chat.render(HI)
    assert chat.render(HI) == "hi"


def test_a_child_made_by_fork_has_a_process_of_its_own(with_bos: Vocabulary) -> None:
    chat = ChatTemplate("{{ messages[0].content }}", with_bos)
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            os.write(write, chat.render([{"role": "user", "content": "child"}]).encode())
        os._exit(0)
    os.close(write)
    assert chat.render(HI) == "hi"
    os.waitpid(pid, 0)
    assert os.read(read, 100) == b"child" and chat.render(HI) == "hi"
    os.close(read)


def test_threads_share_the_process(with_bos: Vocabulary) -> None:
    chat = ChatTemplate("{{ messages[0].content * 1000 }}", with_bos)
    texts = [str(i) for i in range(50)]
    with ThreadPoolExecutor(8) as pool:
        rendered = pool.map(lambda text: chat.render([{"role": "user", "content": text}]), texts)
        assert list(rendered) == [text * 1000 for text in texts]


def test_long_texts_come_whole(with_bos: Vocabulary) -> None:
    text = "é\U0001f999" * 1_000_000
    assert render(with_bos, "{{ messages[0].content }}", [{"role": "user", "content": text}]) == text


def test_what_reaches_a_template(with_bos: Vocabulary) -> None:
    source = "{{ x.a[0] + x.b }}{{ x.c | tojson }}"
    assert render(with_bos, source, x={"a": (np.int64(1),), "b": 0.5, "c": [True, None]}) == "1.5[true, null]"
    loop: list[object] = []
    loop.append(loop)
    for bad in (object(), b"bytes", loop, {"f": print}):
        with pytest.raises(ArgumentError, match="template_variables\\['x'\\]"):
            render(with_bos, "x", x=bad)


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "9" * 5000 + " }}",
        "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
        "{% macro f(a, a) %}{% endmacro %}",
        "{% break %}",
        "{{ f(a=1, a=2) }}",
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "\udcff",
    ],
)
def test_a_template_that_the_compiler_refuses(with_bos: Vocabulary, source: str) -> None:
    """Jinja writes Python, and Python's compiler has limits and rules of its own."""
    with pytest.raises(TokenizerError, match="the chat template is not valid"):
        ChatTemplate(source, with_bos)


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
