"""A byte-level BPE `tokenizer.json`; the name of its pre-tokenizer is found by what it does to a text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from hybridkern.errors import TokenizerError
from hybridkern.text.bpe import cutter
from hybridkern.text.fields import TokenType
from hybridkern.text.pretokenizers import PRE_TOKENIZERS

from .vocabulary import Tokens

# Where several names cut alike, the one that most readers know.
_PREFERRED = ("llama-bpe", "qwen2", "gpt-2", "smollm", "tekken", "gpt-4o", "dbrx", "falcon", "deepseek-v3")
# Digits, contractions, cases, spaces, line ends, scripts, marks, symbols: whatever pre-tokenizers treat differently.
_PROBES = (
    "Hello, world! It's 2024; I'VE paid $1234567.89 -- or 3.5% (we'd say).\n\n  def f(x_1):\n\treturn  x**2  # end   ",
    "HTTPServer getURLFor camelCaseWord snake_case WORD\u2019s naïve Ünïcode e\u0301a\u0308 ABCdef 'tis 'LL",
    "你好，世界！今天是2024年。こんにちは 안녕하세요 привет, мир! नमस्ते दुनिया مرحبا ١٢٣٤ ½ Ⅷ ²",
    "a\r\nb\r\r\n\n c \u00a0d\u3000e\u2003 f\t\t g///h\n/ i...!!!\n?? 🙂🙃👩‍👩‍👧 ``x`` <|y|> ~^+= `a` @#&",
    " 1 22 333 4444 55555 a1b22c333 x=1,000,000 \n \n  \n   z",
)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _parts(node: Any) -> list[dict[str, Any]]:
    """The pre-tokenizers of a (perhaps nested) sequence."""
    if not isinstance(node, dict):
        return []
    if node.get("type") == "Sequence":
        return [part for each in _listed(node.get("pretokenizers")) for part in _parts(each)]
    return [node]


def is_byte_level(fast: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json is BPE over bytes."""
    return any(part.get("type") == "ByteLevel" for part in _parts(fast.get("pre_tokenizer")))


def read_bpe(path: Path, fast: Mapping[str, Any], notes: list[str]) -> Tokens:
    """Raises TokenizerError for a file that the `tokenizers` library does not read, or that GGUF cannot express."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain exceptions
        raise TokenizerError(f"{path}: the tokenizers library refuses it: {error}") from error
    model = fast["model"]
    vocab, merges = model.get("vocab"), model.get("merges")
    if model.get("type", "BPE") != "BPE" or not isinstance(vocab, dict) or not isinstance(merges, list):
        raise TokenizerError(f"{path}: the model is {model.get('type')!r}; BPE with vocab and merges is expected")
    first = fast.get("normalizer")
    normaliser = first.get("type") if isinstance(first, dict) else first
    if normaliser == "NFC":
        notes.append("tokenizer.json composes characters (NFC) first, which readers of GGUF do not do")
    elif normaliser is not None:
        raise TokenizerError(f"{path}: the normaliser {normaliser!r} changes texts, which GGUF cannot say")
    if any(part.get("add_prefix_space") for part in _parts(fast.get("pre_tokenizer"))):
        raise TokenizerError(f"{path}: add_prefix_space is on, which readers of GGUF do not do")
    pre = _name(path, tokenizer, bool(model.get("ignore_merges")))
    tokens = Tokens("gpt2", pre, [], [], merges=[_merge(path, each) for each in merges])
    for text, index in sorted(vocab.items(), key=lambda item: item[1]):
        tokens.put(index, text, TokenType.NORMAL)
    for each in fast.get("added_tokens") or ():
        kind = TokenType.CONTROL if each.get("special") else TokenType.USER_DEFINED
        tokens.put(each["id"], each["content"], kind)
    bare, whole = (tokenizer.encode("a", add_special_tokens=special).ids for special in (False, True))
    before, behind = whole[: -len(bare)], whole[len(bare) :]
    tokens.flags = {
        "add_bos_token": whole[-len(bare) :] == bare and len(before) == 1,
        "add_eos_token": whole[: len(bare)] == bare and len(behind) == 1,
    }
    if len(whole) == len(bare) + 2 and whole[1:-1] == bare:
        tokens.flags = {"add_bos_token": True, "add_eos_token": True}
    elif len(whole) > len(bare) + 1:
        raise TokenizerError(f"{path}: its post-processor adds {len(whole) - len(bare)} tokens, which GGUF cannot say")
    return tokens


def _merge(path: Path, each: Any) -> str:
    """A merge as GGUF writes it, its two parts with a space between; newer files list the parts."""
    parts = each.split(" ") if isinstance(each, str) else each
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(p, str) and p for p in parts):
        raise TokenizerError(f"{path}: {each!r} is no merge of two parts")
    return " ".join(parts)


def _name(path: Path, tokenizer: Tokenizer, ignore_merges: bool) -> str:
    wanted = [tokenizer.pre_tokenizer.pre_tokenize_str(text) for text in _PROBES]
    for name in (*_PREFERRED, *PRE_TOKENIZERS):
        entry = PRE_TOKENIZERS[name]
        if entry.ignore_merges != ignore_merges:
            continue
        known = cutter(entry)
        if wanted == [known.pre_tokenize_str(text) for text in _PROBES]:
            return name
    raise TokenizerError(
        f"{path}: its pre-tokenizer (ignore_merges: {ignore_merges}) cuts texts unlike any that is known: "
        "a GGUF file has no name for it"
    )
