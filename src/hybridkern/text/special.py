"""Special tokens: those that stand in a text as whole strings, and those that end a generation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# Texts of tokens that end a turn or a document in the chat formats in use. A file often names only one of them as EOS.
END_TEXTS = frozenset(
    {
        "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>",
        "<end_of_utterance>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
        "</s>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
        # Code models close a file or a repository with these; nothing meant for the reader follows.
        "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>",
        "<reponame>", "<|file_sep|>",
    }
)  # fmt: skip

# Formats in which "<|end|>" closes one message of several, not the answer.
_END_IS_NOT_LAST = ({"<|return|>", "<|call|>"}, {"<|call|>", "<|flush|>"}, {"<|calls|>", "<|flush|>"})

# Rendered to the reader although the files call them control tokens: they carry the structure of the answer.
SHOWN_TEXTS = frozenset({"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"})

_ASCII_SPACES = " \t\n\v\f\r"
_PREFIX = 3  # characters by which special tokens are grouped before they are looked for
_SMALL_GROUP = 64


def end_ids(token_to_id: Mapping[str, int], named: Iterable[int]) -> frozenset[int]:
    """Ids that end a generation: those that the file names (EOS, EOT, ...) and those whose text is known."""
    texts = {text for text in END_TEXTS if text in token_to_id}
    if any(both <= texts for both in _END_IS_NOT_LAST):
        texts.discard("<|end|>")
    if "<|tool_response>" in texts:
        texts.discard("</s>")
    return frozenset(named) | frozenset(token_to_id[text] for text in texts)


class SpecialMatcher:
    """Finds special tokens in a text.

    Longest first, then from left to right: a token keeps what a longer one has not taken. This is the order of the
    reference implementation (llama.cpp), and it differs from a leftmost search where tokens overlap. The cost is
    linear in the text however many tokens there are: a token is looked for only if its group can occur.
    """

    def __init__(self, texts: Mapping[str, int], rstrip: Iterable[int] = ()) -> None:
        self._rstrip = frozenset(rstrip)
        order = sorted(texts.items(), key=lambda item: (-len(item[0].encode("utf-8", "surrogateescape")), item[1]))
        self._rank = {text: rank for rank, (text, _) in enumerate(order)}
        self._ids = dict(texts)
        self._groups: dict[str, dict[str, None]] = {}
        for text, _ in order:
            self._groups.setdefault(text[:_PREFIX], {})[text] = None
        self._lengths = {prefix: sorted({len(t) for t in group}) for prefix, group in self._groups.items()}

    def split(self, text: str) -> list[str | int]:
        """The text as a list of raw parts (str) and special tokens (int)."""
        found = self._present(text)
        if not found:
            return [text] if text else []
        taken = bytearray(len(text))
        hits: list[tuple[int, int, int]] = []  # (start, end, token)
        for token_text in found:
            self._take(text, token_text, taken, hits)
        hits.sort()
        parts: list[str | int] = []
        at = 0
        for start, end, token in hits:
            if start > at:
                parts.append(text[at:start])
            parts.append(token)
            at = end
        if at < len(text):
            parts.append(text[at:])
        return parts

    def _present(self, text: str) -> list[str]:
        """The special tokens that occur in the text, in matching order."""
        found = []
        for prefix, group in self._groups.items():
            at = text.find(prefix)
            if at < 0:
                continue
            if len(group) <= _SMALL_GROUP:
                found += [t for t in group if t in text]
                continue
            # A large family (<unused0> ... <unused6241>): look up what stands at each place instead of each member.
            seen = set()
            while at >= 0:
                seen.update(text[at : at + n] for n in self._lengths[prefix])
                at = text.find(prefix, at + 1)
            found += seen & group.keys()
        return sorted(found, key=self._rank.__getitem__)

    def _take(self, text: str, token_text: str, taken: bytearray, hits: list[tuple[int, int, int]]) -> None:
        token, size = self._ids[token_text], len(token_text)
        start = text.find(token_text)
        while start >= 0:
            end = start + size
            # Everything taken so far is at least as long, so an overlap always covers one of the two ends.
            if taken[start]:
                free = taken.find(0, start + 1)
                start = text.find(token_text, free) if free >= 0 else -1
                continue
            if taken[end - 1]:
                start = text.find(token_text, start + 1)
                continue
            if token in self._rstrip:
                while end < len(text) and text[end] in _ASCII_SPACES and not taken[end]:
                    end += 1
            taken[start:end] = b"\1" * (end - start)
            hits.append((start, end, token))
            start = text.find(token_text, end)
