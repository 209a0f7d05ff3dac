"""Pre-tokenizers of byte-level BPE: which regular expressions cut a text into words before the merges.

A file names its pre-tokenizer in `tokenizer.ggml.pre`. The expressions are those that the models' own tokenizer files
publish, in Oniguruma syntax; several of them are applied one after the other, each to the parts that the one before
left. Where llama.cpp approximates an expression, the published one stands here. Known to differ: combining marks and
letters without case under gpt-4o and tekken, an ideographic space behind others under deepseek-llm, kimi-k2.
"""

from __future__ import annotations

import re
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
_CJK = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
# The cased letters of the Unicode version of its day, as ranges of code points.
_DEEPSEEK_RANGES = (
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 "
    "3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A "
    "1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 "
    "1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 "
    "212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D "
    "A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 "
    "104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
_DEEPSEEK_LETTERS = r"\s?[" + re.sub(r"[0-9A-F]+", r"\\x{\g<0>}", _DEEPSEEK_RANGES).replace(" ", "") + "]+"
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
_DEEPSEEK_V3 = PreTokenizer((r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3))
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
            (rf"(?:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)
        ),
        "seed-coder",
    ),
    (PreTokenizer((_BLOOM,)), "bloom poro-chat gpt3-finnish"),
    (PreTokenizer((_BLOOM, r"\p{N}")), "viking"),
)

#: Every name of `tokenizer.ggml.pre` that this package knows.
PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: entry for entry, names in _TABLE for name in names.split()}
