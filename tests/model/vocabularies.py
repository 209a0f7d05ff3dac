"""Minimal vocabularies: SPM (bytes, letters, a few words) and byte-level BPE (bytes, a few merges)."""

from __future__ import annotations

from typing import Any

NORMAL, UNKNOWN, CONTROL, UNUSED, BYTE = 1, 2, 3, 5, 6
WORDS = ("the", "then", "and", "hello", "world", "in", "on", "is", "it")


def _prefixes(start: str) -> list[str]:
    """Every beginning of each word behind `start`, so that merges can build the word from the left."""
    made: dict[str, None] = {}
    for word in WORDS:
        for n in range(1, len(word) + 1):
            made[start + word[:n]] = None
    return list(made)


def spm(n_vocab: int) -> dict[str, Any]:
    """Metadata of an SPM vocabulary of n_vocab >= 330 tokens."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    scores = [0.0] * len(tokens)
    pieces = list(dict.fromkeys(["▁", *"etaoinshrdlucmwfgypbvkxjqz.,", *_prefixes("▁")]))
    tokens += pieces
    types += [NORMAL] * len(pieces)
    scores += [-float(i) for i in range(len(pieces))]
    _pad(tokens, types, n_vocab)
    scores += [-1000.0] * (n_vocab - len(scores))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
    }


def byte_characters() -> list[str]:
    """The printable character that byte-level BPE writes for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return [chr(b) if b in printable else chr(256 + others.index(b)) for b in range(256)]


def bpe(n_vocab: int) -> dict[str, Any]:
    """Metadata of a byte-level BPE vocabulary of n_vocab >= 330 tokens."""
    tokens = byte_characters()
    merges = []
    for piece in _prefixes("Ġ"):
        merges.append(f"{piece[:-1]} {piece[-1]}")
        tokens.append(piece)
    types = [NORMAL] * len(tokens)
    special = len(tokens)
    tokens += ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    types += [CONTROL] * 3
    _pad(tokens, types, n_vocab)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": special + 2,
        "tokenizer.ggml.padding_token_id": special,
        "tokenizer.ggml.add_bos_token": False,
    }


def _pad(tokens: list[str], types: list[int], n_vocab: int) -> None:
    missing = n_vocab - len(tokens)
    assert missing >= 0, f"a vocabulary of {n_vocab} is too small, {len(tokens)} are needed"
    tokens += [f"<pad{i}>" for i in range(missing)]
    types += [UNUSED] * missing
