"""A tokenizer as GGUF metadata: `tokenizer.model` (SentencePiece) or a byte-level BPE `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybridkern.errors import TokenizerError
from hybridkern.text.fields import TokenType

from .shards import read_json

MAX_TOKENS = 1 << 22
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


@dataclass
class Tokens:
    """A vocabulary: texts and types by id; scores for SPM, merges and the pre-tokenizer's name for BPE."""

    model: str
    pre: str
    texts: list[str]
    types: list[int]
    scores: list[float] | None = None
    merges: list[str] | None = None
    flags: dict[str, bool] = field(default_factory=dict)

    def put(self, index: int, text: str, kind: int) -> None:
        """Name the token `index`, which may lie behind the end: unused ones fill the gap."""
        if type(index) is not int or not 0 <= index < MAX_TOKENS:
            raise TokenizerError(f"token {text!r} has the id {index}; an id below {MAX_TOKENS} is expected")
        while len(self.texts) <= index:
            self.texts.append(f"[PAD{len(self.texts)}]")
            self.types.append(TokenType.UNUSED)
            if self.scores is not None:
                self.scores.append(-1000.0)
        self.texts[index], self.types[index] = text, kind

    def fit(self, n: int, notes: list[str]) -> None:
        """Make it n tokens, the rows of the embedding. Tokens behind them have no embedding: they are left out."""
        if len(self.texts) < n:
            notes.append(f"the vocabulary has {len(self.texts)} tokens for {n} rows: unused ones fill it up")
            self.put(n - 1, f"[PAD{n - 1}]", TokenType.UNUSED)
        for index in range(n, len(self.texts)):
            if self.types[index] not in (TokenType.CONTROL, TokenType.USER_DEFINED):
                raise TokenizerError(f"token {index} ({self.texts[index]!r}) is behind the {n} rows of the embedding")
            notes.append(f"token {index} ({self.texts[index]!r}) has no row in the embedding: left out")
        del self.texts[n:], self.types[n:]
        if self.scores is not None:
            del self.scores[n:]


def tokenizer_keys(folder: Path, config: Mapping[str, Any], n_vocab: int, notes: list[str]) -> dict[str, Any]:
    """The `tokenizer.*` metadata of a folder. Raises TokenizerError for a tokenizer that GGUF cannot hold."""
    from .bpe import is_byte_level, read_bpe
    from .sentencepieces import read_sentencepiece

    told = _optional(folder / "tokenizer_config.json")
    fast = _optional(folder / "tokenizer.json")
    if fast and is_byte_level(fast):
        tokens = read_bpe(folder / "tokenizer.json", fast, notes)
    elif (folder / "tokenizer.model").exists():
        tokens = read_sentencepiece(folder / "tokenizer.model", told, fast, _optional(folder / "added_tokens.json"))
    elif fast:
        model = fast.get("model")
        kind = model.get("type") if isinstance(model, dict) else None
        raise TokenizerError(
            f"{folder / 'tokenizer.json'}: a {kind} tokenizer that is not byte-level; its tokenizer.model is needed"
        )
    else:
        raise TokenizerError(f"{folder}: holds neither tokenizer.json nor tokenizer.model")
    tokens.fit(n_vocab, notes)
    keys: dict[str, Any] = {
        "model": tokens.model,
        "pre": tokens.pre,
        "tokens": tokens.texts,
        "token_type": [int(t) for t in tokens.types],
    }
    if tokens.scores is not None:
        keys["scores"] = tokens.scores
    if tokens.merges is not None:
        keys["merges"] = tokens.merges
    keys |= _special_ids(folder, config, told, tokens.texts)
    keys |= tokens.flags
    named = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return named | _templates(folder, told)


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _special_ids(folder: Path, config: Mapping[str, Any], told: Mapping[str, Any], texts: list[str]) -> dict[str, int]:
    """Ids of BOS, EOS and the like; where a model ends its turns with another token than EOS, that is EOT."""
    generation = _optional(folder / "generation_config.json")
    ids: dict[str, int] = {}
    for role, name in _ROLES.items():
        text = told.get(f"{role}_token")
        text = text.get("content") if isinstance(text, dict) else text
        if isinstance(text, str):
            if text not in texts:
                raise TokenizerError(f"tokenizer_config.json: '{role}_token' is {text!r}, which is no token")
            ids[f"{name}_token_id"] = texts.index(text)
            continue
        listed = _ids(config, f"{role}_token_id", len(texts)) or _ids(generation, f"{role}_token_id", len(texts))
        if listed:
            ids[f"{name}_token_id"] = listed[0]
    ends = _ids(generation, "eos_token_id", len(texts)) or _ids(config, "eos_token_id", len(texts))
    others = [i for i in ends if i != ids.get("eos_token_id")]
    if others:
        # llama.cpp finds the rest of the ends by their texts; one that a chat template writes is the likeliest.
        ids["eot_token_id"] = next((i for i in others if texts[i] in str(told.get("chat_template"))), others[0])
    return ids


def _ids(values: Mapping[str, Any], key: str, n: int) -> list[int]:
    value = values.get(key)
    listed = value if isinstance(value, list) else [] if value is None else [value]
    for each in listed:
        if type(each) is not int or each < -1:
            raise TokenizerError(f"{key!r} is {value!r}; token ids are expected")
    return [each for each in listed if 0 <= each < n]


def _templates(folder: Path, told: Mapping[str, Any]) -> dict[str, Any]:
    path = folder / "chat_template.jinja"
    found = path.read_text(encoding="utf-8") if path.exists() else told.get("chat_template")
    if found is None:
        return {}
    if isinstance(found, str):
        return {"tokenizer.chat_template": found}
    if not isinstance(found, list) or not all(isinstance(t, dict) and {"name", "template"} <= t.keys() for t in found):
        raise TokenizerError("tokenizer_config.json: 'chat_template' is neither a text nor a list of named templates")
    keys: dict[str, Any] = {}
    for each in found:
        keys["tokenizer.chat_template" + ("" if each["name"] == "default" else f".{each['name']}")] = each["template"]
    names = [each["name"] for each in found if each["name"] != "default"]
    return keys | ({"tokenizer.chat_templates": names} if names else {})
