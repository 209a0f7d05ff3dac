"""A SentencePiece `tokenizer.model` with the tokens that the JSON files beside it add."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridkern.errors import TokenizerError
from hybridkern.text.fields import TokenType
from hybridkern.text.spm import SPACE

from .vocabulary import Tokens


def read_sentencepiece(
    path: Path, told: Mapping[str, Any], fast: Mapping[str, Any], added: Mapping[str, Any]
) -> Tokens:
    """told, fast, added: tokenizer_config.json, tokenizer.json and added_tokens.json, each perhaps empty.

    Raises TokenizerError for a model of another kind than BPE, and for one that changes a text before it splits it.
    """
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2 as pb

    proto = pb.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise TokenizerError(f"{path}: is not a SentencePiece model: {error}") from error
    if not proto.pieces:
        raise TokenizerError(f"{path}: holds no pieces")
    kind, normaliser = proto.trainer_spec.model_type, proto.normalizer_spec
    if kind != pb.TrainerSpec.BPE:
        raise TokenizerError(f"{path}: model_type is {pb.TrainerSpec.ModelType.Name(kind)}; only BPE is supported")
    if normaliser.precompiled_charsmap:
        raise TokenizerError(f"{path}: the normaliser {normaliser.name!r} changes texts, which GGUF cannot say")
    if normaliser.remove_extra_whitespaces:
        raise TokenizerError(f"{path}: remove_extra_whitespaces is on, which readers of GGUF do not do")
    # The types of pieces have the same numbers there and in GGUF.
    tokens = Tokens(
        "llama",
        "default",
        [p.piece for p in proto.pieces],
        [int(p.type) for p in proto.pieces],
        [float(p.score) for p in proto.pieces],
    )
    n = len(tokens.texts)
    for index, text, special in _added(told, fast, added):
        if not special:
            text = text.replace(SPACE, " ")
        if index < n and special and tokens.types[index] == TokenType.UNKNOWN:
            continue
        tokens.put(index, text, TokenType.CONTROL if special else TokenType.USER_DEFINED)
    prefix = told.get("add_prefix_space")
    tokens.flags = {
        "add_bos_token": bool(told.get("add_bos_token", True)),
        "add_eos_token": bool(told.get("add_eos_token", False)),
        "add_space_prefix": bool(normaliser.add_dummy_prefix if prefix is None else prefix),
    }
    return tokens


def _added(told: Mapping[str, Any], fast: Mapping[str, Any], added: Mapping[str, Any]) -> list[tuple[int, str, bool]]:
    """(id, text, special) of every token that a file adds; what tokenizer_config.json says of an id counts most."""
    found: dict[int, tuple[str, bool]] = {}
    try:
        for text, index in added.items():
            found[int(index)] = (text, False)
        for each in fast.get("added_tokens") or ():
            found[int(each["id"])] = (str(each["content"]), bool(each.get("special")))
        for index, each in (told.get("added_tokens_decoder") or {}).items():
            found[int(index)] = (str(each["content"]), bool(each.get("special")))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TokenizerError(f"the list of added tokens is malformed: {error!r}") from error
    if any(index < 0 for index in found):
        raise TokenizerError("the list of added tokens has a negative id")
    return [(index, *found[index]) for index in sorted(found)]
