"""Writes the committed corpus: small files that reach every part of the reader, the model layer and the text layer.

`python -m fuzz.seeds` writes them to fuzz/corpus/reader and fuzz/corpus/text.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .wire import (
    ARRAY,
    BLOCKS,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    File,
    Key,
    Tensor,
    joined,
    key,
    lay_out,
    write,
)  # fmt: skip

CORPUS = Path(__file__).parent / "corpus"
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
    "'<|im_start|>system\nBe brief<|im_end|>\n' }}{% endif %}{{ '<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\n\n"
    "' %}{% set loop_messages = messages[1:] %}{% else %}{% set first = '' %}{% set loop_messages = "
    "messages %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != "
    "(loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}{{ "
    "'<start_of_turn>' ~ message['role'] ~ '\n' ~ (first if loop.first else '') }}{% if "
    "message['content'] is string %}{{ message['content'] | trim }}{% elif message['content'] is "
    "iterable %}{% for item in message['content'] %}{{ item['text'] | trim }}{% endfor %}{% endif %}{{ "
    "'<end_of_turn>\n' }}{% endfor %}"
)
TOOLS = (
    "{%- macro show(m) -%}{{ m.role }}: {{ m.content or '' }}{%- endmacro -%}{%- set ns = "
    "namespace(n=0, text='') -%}{%- if tools %}{{ tools | tojson(indent=2) }}{% endif -%}{%- for m in "
    "messages -%}{%- set ns.n = ns.n + 1 -%}{%- if m.tool_calls %}{% for c in m.tool_calls %}{{ "
    "c['name'] }}{{ c | tojson }}{% endfor %}{% continue %}{% endif %}{% generation %}{{ show(m) }}{% "
    "endgeneration %}{%- set ns.text = ns.text + m.role -%}{%- endfor -%}{{ "
    "ns.text.split('u')[-1].rstrip() }}{{ strftime_now('%Y') }}"
)


def _model(arch: str, n_layer: int = 1, n_vocab: int = 12, **more: tuple[int, Any]) -> list[Key]:
    own = {
        "block_count": (U32, n_layer),
        "embedding_length": (U32, 8),
        "context_length": (U32, 64),
        "feed_forward_length": (U32, 16),
        "attention.head_count": (U32, 2),
        "attention.head_count_kv": (U32, 1),
        "attention.layer_norm_rms_epsilon": (F32, 1e-5),
        "rope.dimension_count": (U32, 4),
        "rope.freq_base": (F32, 1e4),
        "vocab_size": (U32, n_vocab),
    }
    own |= {name.replace("__", "."): value for name, value in more.items()}
    return [key("general.architecture", STRING, arch), *(key(f"{arch}.{n}", *v) for n, v in own.items())]


def _tensors(arch: str, n_layer: int = 1, n_vocab: int = 12, kv: int = 4, **more: list[int]) -> list[Tensor]:
    shapes: dict[str, list[int]] = {"token_embd.weight": [8, n_vocab]}
    for i in range(n_layer):
        b = f"blk.{i}."
        shapes |= {f"{b}attn_norm.weight": [8], f"{b}ffn_norm.weight": [8], f"{b}attn_output.weight": [8, 8]}
        if arch == "phi3":
            shapes |= {f"{b}attn_qkv.weight": [8, 8 + 2 * kv], f"{b}ffn_up.weight": [8, 32]}
        else:
            shapes |= {f"{b}attn_q.weight": [8, 8], f"{b}attn_k.weight": [8, kv], f"{b}attn_v.weight": [8, kv]}
            shapes |= {f"{b}ffn_gate.weight": [8, 16], f"{b}ffn_up.weight": [8, 16]}
        if arch == "qwen2":
            shapes |= {f"{b}attn_q.bias": [8], f"{b}attn_k.bias": [kv], f"{b}attn_v.bias": [kv]}
        if arch in ("qwen3", "gemma3"):
            shapes |= {f"{b}attn_q_norm.weight": [4], f"{b}attn_k_norm.weight": [4]}
        if arch in ("gemma2", "gemma3"):
            shapes |= {f"{b}post_attention_norm.weight": [8], f"{b}post_ffw_norm.weight": [8]}
        shapes[f"{b}ffn_down.weight"] = [16, 8]
    shapes |= {"output_norm.weight": [8], **more}
    return [Tensor(name.encode(), dims, 0) for name, dims in shapes.items()]


def _spm(extra: tuple[tuple[str | bytes, int, float], ...] = ()) -> list[Key]:
    rows: list[tuple[str | bytes, int, float]] = [
        ("<unk>", 2, 0.0),
        ("<s>", 3, 0.0),
        ("</s>", 3, 0.0),
        ("<0x61>", 6, 0.0),
        ("<0xFF>", 6, 0.0),
        ("▁", 1, -1.0),
        ("a", 1, -2.0),
        ("b", 1, -3.0),
        ("▁a", 1, -1.5),
        ("ab", 1, -1.2),
        ("<tool>", 4, 0.0),
        ("ab", 1, -9.0),
        *extra,
    ]
    return [
        key("tokenizer.ggml.model", STRING, "llama"),
        key("tokenizer.ggml.tokens", ARRAY, (STRING, [row[0] for row in rows])),
        key("tokenizer.ggml.scores", ARRAY, (F32, [row[2] for row in rows])),
        key("tokenizer.ggml.token_type", ARRAY, (I32, [row[1] for row in rows])),
        key("tokenizer.ggml.bos_token_id", U32, 1),
        key("tokenizer.ggml.eos_token_id", U32, 2),
        key("tokenizer.ggml.add_bos_token", BOOL, True),
    ]


def _bpe(
    pre: str, *keys: Key, specials: tuple[str, ...] = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
) -> list[Key]:
    letters = [chr(c) for c in range(0x21, 0x7F)] + ["Ġ", "Ċ", "Ã", "©", "he", "hel", "Ġh", "Ġhe"]
    types = [1] * len(letters) + [3] * len(specials)
    return [
        key("tokenizer.ggml.model", STRING, "gpt2"),
        key("tokenizer.ggml.pre", STRING, pre),
        key("tokenizer.ggml.tokens", ARRAY, (STRING, [*letters, *specials])),
        key("tokenizer.ggml.token_type", ARRAY, (I32, types)),
        key("tokenizer.ggml.merges", ARRAY, (STRING, ["h e", "he l", "Ġ h", "Ġh e", "q nothing"])),
        key("tokenizer.ggml.eos_token_id", U32, len(letters) + 1),
        *keys,
    ]


def _file(keys: list[Key], tensors: list[Tensor], version: int = 3) -> bytes:
    file = File(keys, tensors, b"\0\0\x80?", version)
    lay_out(file)
    return bytes(write(file))


def _every_kind() -> list[Key]:
    values: list[tuple[int, Any]] = [
        (U8, 200),
        (I8, -3),
        (U16, 9),
        (I16, -9),
        (U32, 1 << 31),
        (I32, -5),
        (F32, 0.1),
        (BOOL, True),
        (U64, (1 << 63) + 5),
        (I64, -(1 << 62)),
        (F64, -0.1),
        (STRING, b"\xff\xc3"),
        (ARRAY, (BOOL, [True, False])),
        (ARRAY, (STRING, ["", "x"])),
        (ARRAY, (F64, [])),
        (ARRAY, (ARRAY, [(U8, [1]), (ARRAY, [(STRING, ["deep"])])])),
    ]
    return [key(f"k.{i}", *value) for i, value in enumerate(values)] + [key("general.alignment", U32, 32)]


def reader_seeds() -> Iterator[tuple[str, bytes]]:
    """Names and bytes of the inputs of the target `reader`."""
    yield "kinds", _file(_every_kind(), [Tensor(f"t.{t}".encode(), [block, 1], t) for t, (block, _) in BLOCKS.items()])
    yield (
        "llama",
        _file(
            _model("llama") + _spm(),
            [*_tensors("llama", **{"output.weight": [8, 12]}), Tensor(b"rope_freqs.weight", [2], 0)],
        ),
    )
    per_block = {"attention__head_count_kv": (ARRAY, (I32, [1, 2])), "feed_forward_length": (ARRAY, (I32, [16, 16]))}
    two = [
        Tensor(t.name, [8, 8] if t.name in (b"blk.1.attn_k.weight", b"blk.1.attn_v.weight") else t.dims, 0)
        for t in _tensors("llama", 2)
    ]
    yield (
        "two-blocks",
        _file(
            _model("llama", 2, **per_block, rope__scaling__type=(STRING, "yarn"), rope__scaling__factor=(F32, 4.0))
            + _spm(),
            two,
        ),
    )
    yield "qwen2", _file(_model("qwen2", n_vocab=105) + _bpe("qwen2"), _tensors("qwen2", n_vocab=105))
    yield "qwen3", _file(_model("qwen3", rope__scaling__factor=(F32, 2.0)), _tensors("qwen3"), 2)
    window = {
        "attention__sliding_window": (U32, 4),
        "attention__key_length": (U32, 4),
        "attention__value_length": (U32, 4),
    }
    yield "gemma2", _file(_model("gemma2", **window, attn_logit_softcapping=(F32, 50.0)) + _spm(), _tensors("gemma2"))
    pattern = {"attention__sliding_window_pattern": (ARRAY, (BOOL, [True])), "rope__freq_base_swa": (F32, 1e4)}
    yield "gemma3", _file(_model("gemma3", **window, **pattern) + _spm(), _tensors("gemma3"))
    long = {"rope_factors_short.weight": [2], "rope_factors_long.weight": [2]}
    yield (
        "phi3",
        _file(
            _model("phi3", rope__scaling__type=(STRING, "longrope"), rope__scaling__attn_factor=(F32, 1.1)),
            _tensors("phi3", **long),
        ),
    )
    halves = _tensors("llama")
    for t, type_ in zip(halves, (1, 30, 1, 1, 30), strict=False):
        t.type = type_
    yield "halves", _file(_model("llama") + _spm(), halves)
    parts = []
    for no in range(3):
        keys = [key("split.no", U16, no), key("split.count", U16, 3), key("split.tensors.count", I32, 3)]
        parts.append(_file([key("general.name", STRING, "n"), *keys], [Tensor(b"w%d" % no, [2], 0)]))
    yield "split", joined(parts)
    yield "beyond", bytes(write(File([], [Tensor(b"w", [1 << 12, 4], 0), Tensor(b"v", [32], 2, 1 << 16)])))
    yield "empty", b""
    yield "header", b"GGUF\3\0\0\0" + bytes(16)
    yield "big-endian", b"GGUF\0\0\0\3" + bytes(16)
    others = {
        "zip": b"PK\3\4",
        "lfs": b"version https://git-lfs.github.com/spec/v1",
        "html": b"\xef\xbb\xbf<!DOCTYPE html>",
        "zeros": bytes(70),
        "json": b' {"error": 1}',
        "pickle": b"\x80\4\x95\0",
        "safetensors": b"\x40\0\0\0\0\0\0\0{}",
        "text": b"what is this?",
    }
    yield from others.items()


def _text(keys: list[Key], text: str | bytes, template: str | None = None) -> bytes:
    own = [key("fuzz.text", STRING, text)] + ([key("tokenizer.chat_template", STRING, template)] if template else [])
    return _file(keys + own, [])


def text_seeds() -> Iterator[tuple[str, bytes]]:
    """Names and bytes of the inputs of the target `text`."""
    yield "spm", _text(_spm(), "a<s> b ab<tool>  ab")
    no_bytes = tuple((c, 1, -5.0) for c in "c de")
    yield (
        "spm-no-prefix",
        _text([*_spm(no_bytes), key("tokenizer.ggml.add_space_prefix", BOOL, False)], "\t\t a", GEMMA),
    )
    yield "spm-invalid", _text(_spm(((b"\xff\xfe", 1, -4.0), (b"a\xed\xa0\x80", 4, 0.0))), "aab", "{{ bos_token }}x")
    for pre in ("gpt-2", "llama-bpe", "deepseek-llm", "kimi-k2", "nothing-known"):
        yield f"bpe-{pre}", _text(_bpe(pre), "hello he\n 123 <|im_start|>!!", CHATML if pre == "gpt-2" else TOOLS)
    shown = ("<|return|>", "<|call|>", "<|end|>", "<|start|>", "<unk>")
    phi = [
        key("general.name", STRING, "Phi-3 mini"),
        key("tokenizer.ggml.add_eos_token", BOOL, True),
        key("tokenizer.ggml.bos_token_id", U32, 103),
    ]
    yield "bpe-phi", _text(_bpe("default", *phi, specials=shown), "<|end|>  he <|call|>", "{{ messages[0].content }}")
    many = tuple(f"<x{i}>" for i in range(70))
    yield (
        "bpe-many",
        _text(_bpe("tekken", specials=("</s>", *many)), "<x1><x69>  <x", "{% for m in messages %}{{ m }}{% endfor %}"),
    )


def write_all() -> None:
    """Write the corpus."""
    for target, seeds in (("reader", reader_seeds()), ("text", text_seeds())):
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in seeds:
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    write_all()
