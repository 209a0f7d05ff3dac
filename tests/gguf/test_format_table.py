"""The type table against gguf-py's constants."""

from __future__ import annotations

import gguf
import pytest

from hybridkern.gguf import BY_NAME, SUPPORTED, TYPES


@pytest.mark.parametrize("theirs", gguf.GGMLQuantizationType, ids=lambda t: t.name)
def test_equals_gguf_py(theirs):
    ours = TYPES[int(theirs)]
    size = (ours.block_size, ours.block_bytes)
    assert ours.name == theirs.name
    if ours.name == "Q8_1":  # kept in memory only: two fp16 and 32 bytes; gguf-py has two fp32
        assert size == (32, 36)
    else:
        assert size == gguf.GGML_QUANT_SIZES[theirs]


def test_table_is_consistent():
    assert all(TYPES[t.id] is t and BY_NAME[t.name] is t for t in TYPES.values())
    assert len(BY_NAME) == len(TYPES)
    assert len(SUPPORTED) == 16 and set(TYPES.values()) >= SUPPORTED
