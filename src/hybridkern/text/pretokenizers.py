"""Pre-tokenizers of byte-level BPE: which regular expressions cut a text into words before the merges.

A file names its pre-tokenizer in `tokenizer.ggml.pre`. The expressions are those that the models' own tokenizer files
publish, in Oniguruma syntax; several of them are applied one after the other, each to the parts that the one before
left. Where llama.cpp had to approximate an expression, the published one stands here.
"""

from __future__ import annotations

from dataclasses import dataclass

_CONTRACTION = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _cl100k(digits: str) -> str:
    """The family of Llama 3 and Qwen 2, which differ in how many digits go together."""
    return rf"(?:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


def _o200k(digits: str, contraction: str, without: str = "", symbols_end: str = r"[\r\n/]*") -> str:
    """The family of GPT-4o and Tekken: words end where lower case turns to upper case."""
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{lead}{upper}*{lower}+{contraction}|{lead}{upper}+{lower}*{contraction}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+{symbols_end}|{_SPACES}"
    )


_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_CJK = "[一-龥ࠀ-一가-\ud7ff]+"
_DEEPSEEK_LETTERS = (
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ"
    r"Ὗ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗ"
    r"Ａ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)
_DEEPSEEK_PUNCTUATION = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_DEEPSEEK3 = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_HAN = r"&&[^\p{Han}]"


@dataclass(frozen=True)
class PreTokenizer:
    """The expressions, and whether a word that is a token is taken whole, whatever the merges say."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False


DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))

_LLAMA3 = PreTokenizer((_cl100k(r"\p{N}{1,3}"),), ignore_merges=True)
_DBRX = PreTokenizer(_LLAMA3.patterns)
_QWEN2 = PreTokenizer((_cl100k(r"\p{N}"),))
_GPT_2 = PreTokenizer((_GPT2,))
_DIGITS_THEN_GPT2 = PreTokenizer((r"\p{N}", _GPT2))
_DEEPSEEK_V3 = PreTokenizer((r"\p{N}{1,3}", "[一-龥\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3))
_GPT_4O = PreTokenizer((_o200k(r"\p{N}{1,3}", rf"(?:{_CONTRACTION})?"),))
_BAILING = PreTokenizer(
    (
        r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)

_TABLE: tuple[tuple[PreTokenizer, str], ...] = (
    (DEFAULT, "default"),
    (_LLAMA3, "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"),
    (_DBRX, "dbrx smaug-bpe chatglm-bpe glm4"),
    (_QWEN2, "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan megrez solar-open grok-2"),
    (
        PreTokenizer(
            (
                rf"(?:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
                rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
            )
        ),
        "qwen35",
    ),
    (
        _GPT_2,
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum modern-bert exaone4 "
        "jina-es jina-de jina-v2-es jina-v2-de",
    ),
    (_DIGITS_THEN_GPT2, "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"),
    (PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")), "falcon"),
    (
        PreTokenizer((r"[\r\n]", _DEEPSEEK_LETTERS, _DEEPSEEK_PUNCTUATION, r"\s+$", _CJK, r"\p{N}+")),
        "deepseek-llm",
    ),
    (PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")), "deepseek-coder"),
    (_DEEPSEEK_V3, "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    (_GPT_4O, "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (PreTokenizer((_o200k(r"\p{N}", ""),), ignore_merges=True), "tekken"),
    (
        PreTokenizer(
            (r"\p{Han}+|" + _o200k(r"\p{N}{1,3}", rf"(?:{_CONTRACTION})?", without=_HAN, symbols_end=r"[\r\n]*"),)
        ),
        "kimi-k2",
    ),
    (_BAILING, "bailingmoe bailingmoe2 llada-moe"),
    (
        PreTokenizer(
            (
                rf"(?:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",
            )
        ),
        "seed-coder",
    ),
    (PreTokenizer((_BLOOM,)), "bloom poro-chat gpt3-finnish"),
    (PreTokenizer((_BLOOM, r"\p{N}")), "viking"),
)

#: Every name of `tokenizer.ggml.pre` that this package knows.
PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: entry for entry, names in _TABLE for name in names.split()}
