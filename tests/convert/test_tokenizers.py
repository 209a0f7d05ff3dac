"""Vocabularies of converted folders against the libraries that the folders' own files are for."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("safetensors")
import sentencepiece
import tokenizers
from folders import tiny_pair

from hybridkern.convert import convert_folder, inspect_folder
from hybridkern.errors import TokenizerError
from hybridkern.gguf import GGUFFile
from hybridkern.text import Vocabulary

TEXTS = ("hello world", " the then  and\n\nit's", "naïve 日本 🙂 12345", "a", "in  on\tis\r\n it")


def converted(folder, out):
    convert_folder(inspect_folder(folder), out)
    with GGUFFile.open(out) as file:
        return Vocabulary.from_metadata(file.metadata)


def test_byte_level_bpe(tmp_path):
    _, folder = tiny_pair(tmp_path, "qwen2")
    vocabulary = converted(folder, tmp_path / "out.gguf")
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in (*TEXTS, "<|im_start|>the<|im_end|>\n"):
        assert vocabulary.encode(text, special=True) == library.encode(text).ids
    assert not vocabulary.add_bos


def test_sentencepiece(tmp_path):
    _, folder = tiny_pair(tmp_path, "llama")
    vocabulary = converted(folder, tmp_path / "out.gguf")
    library = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    for text in TEXTS:
        assert vocabulary.encode(text) == [1, *library.EncodeAsIds(text)]


def test_added_tokens_and_ends(tmp_path):
    _, folder = tiny_pair(tmp_path, "llama")
    path = folder / "tokenizer_config.json"
    added = {"330": {"content": "<turn>", "special": True}, "331": {"content": "▁▁", "special": False}}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"added_tokens_decoder": added}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 330]}))
    vocabulary = converted(folder, tmp_path / "out.gguf")
    assert vocabulary.encode("<turn>", special=True, bos=False) == [330]
    assert 331 in vocabulary.encode("a  b")
    assert vocabulary.end_ids >= {2, 330}


def test_bos_from_the_post_processor(tmp_path):
    _, folder = tiny_pair(tmp_path, "qwen2")
    path = folder / "tokenizer.json"
    fast = json.loads(path.read_text())
    bos = next(a["id"] for a in fast["added_tokens"] if a["content"] == "<|im_start|>")
    fast["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "B", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"B": {"id": "B", "ids": [bos], "tokens": ["<|im_start|>"]}},
    }
    path.write_text(json.dumps(fast))
    told = json.loads((folder / "tokenizer_config.json").read_text()) | {"bos_token": "<|im_start|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    vocabulary = converted(folder, tmp_path / "out.gguf")
    assert vocabulary.encode("the") == tokenizers.Tokenizer.from_file(str(path)).encode("the").ids


def test_an_id_far_out(tmp_path):
    _, folder = tiny_pair(tmp_path, "llama")
    (folder / "added_tokens.json").write_text(json.dumps({"<far>": 10**12}))
    with pytest.raises(TokenizerError, match="'<far>' has the id 1000000000000"):
        inspect_folder(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "normaliser 'Lowercase'"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}}, "add_prefix_space"),
    ],
)
def test_what_no_gguf_file_can_say(tmp_path, change, said):
    _, folder = tiny_pair(tmp_path, "qwen2")
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(TokenizerError, match=said):
        inspect_folder(folder)


def test_an_unknown_pre_tokenizer(tmp_path):
    _, folder = tiny_pair(tmp_path, "qwen2")
    path = folder / "tokenizer.json"
    fast = json.loads(path.read_text())
    fast["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\p{L}+|\p{N}{1,2}"
    path.write_text(json.dumps(fast))
    with pytest.raises(TokenizerError, match="unlike any that is known"):
        inspect_folder(folder)
