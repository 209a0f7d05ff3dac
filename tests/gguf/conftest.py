"""Shared files of the reader's tests."""

from __future__ import annotations

import numpy as np
import pytest
from builder import ARRAY, BOOL, F32, F64, I8, I32, I64, STRING, U8, U32, U64, Built, Tensor, build


@pytest.fixture(scope="session")
def sample() -> Built:
    """A valid file with every kind of metadata value and tensors of several types."""
    rng = np.random.default_rng(7)
    metadata = [
        ("general.architecture", STRING, "llama"),
        ("general.alignment", U32, 32),
        ("llama.block_count", U32, 2),
        ("llama.rope.freq_base", F32, 10000.0),
        ("a.double", F64, -0.1),
        ("a.byte", U8, 200),
        ("a.small", I8, -3),
        ("a.wide", U64, 2**63 + 5),
        ("a.long", I64, -(2**62)),
        ("a.flag", BOOL, True),
        ("a.flags", ARRAY, (BOOL, [True, False, True])),
        ("llama.attention.head_count_kv", ARRAY, (I32, [4, 2])),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, ["<s>", "ä", "", "same", "same", b"\xff\xfe"])),
        ("tokenizer.ggml.scores", ARRAY, (F32, [0.5, -1.0, 2.0, 0.0, 1e30, -0.0])),
        ("empty.numbers", ARRAY, (U32, [])),
        ("empty.strings", ARRAY, (STRING, [])),
    ]
    tensors = [
        Tensor("token_embd.weight", 0, (8, 6), rng.standard_normal(48).astype("<f4").tobytes()),
        Tensor("rope_freqs.weight", 0, (3,), np.ones(3, "<f4").tobytes()),
        Tensor("blk.0.q.weight", 12, (256, 3), np.tile(np.uint8(7), 3 * 144).tobytes()),
        Tensor("blk.0.h.weight", 1, (5, 1, 2), np.arange(10, dtype="<f2").tobytes()),
    ]
    return build(metadata, tensors)


@pytest.fixture
def write(tmp_path):
    """write(data, name="m.gguf") -> path of a file with those bytes."""

    def write(data: bytes | Built, name: str = "m.gguf") -> str:
        path = tmp_path / name
        path.write_bytes(data.data if isinstance(data, Built) else data)
        return str(path)

    return write
