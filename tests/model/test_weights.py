"""Binding tensors: files that are no model give an error that says why; harmless oddities load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import ids_of
from forward import forward
from running import batch_of, load, reference
from tiny import write_tiny

from hybridkern.errors import ModelError

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "more blocks promised": (
        {"metadata": {"llama.block_count": 10}},
        r"llama\.block_count is 10, but the file holds 2 blocks; block 2 is missing",
    ),
    "fewer blocks promised": (
        {"metadata": {"llama.block_count": 1}},
        r"llama\.block_count is 1, but the file holds tensors of block 1",
    ),
    "no blocks promised": ({"metadata": {"llama.block_count": 0}}, r"'llama\.block_count' is 0"),
    "short vocabulary": (
        {"metadata": {"tokenizer.ggml.tokens": [f"t{i}" for i in range(300)]}},
        r"300 tokens \(tokenizer\.ggml\.tokens\), but 'token_embd\.weight' has 336 rows",
    ),
    "no vocabulary, wrong size": (
        {"metadata": {"tokenizer.ggml.tokens": None, "llama.vocab_size": 400}},
        r"400 tokens \(llama\.vocab_size\), but 'token_embd\.weight' has 336 rows",
    ),
    "no embedding": ({"drop": ["token_embd.weight"]}, r"'token_embd\.weight' of shape \(336, 64\) is missing"),
    "no norm": ({"drop": ["output_norm.weight"]}, r"'output_norm\.weight'"),
    "no matrix": ({"drop": ["blk.1.attn_v.weight"]}, r"'blk\.1\.attn_v\.weight' of shape \(32, 64\) is missing"),
    "wrong width": (
        {"metadata": {"llama.embedding_length": 128}},
        r"'token_embd\.weight' has the shape \(336, 64\), but \(336, 128\) is wanted \(.*llama\.embedding_length\)",
    ),
    "wrong feed-forward": (
        {"metadata": {"llama.feed_forward_length": 128}},
        r"'blk\.0\.ffn_gate\.weight' has the shape \(96, 64\), but \(128, 64\) is wanted "
        r"\(llama\.feed_forward_length, llama\.embedding_length\)",
    ),
    "wrong heads": (
        {"metadata": {"llama.attention.head_count_kv": 4}},
        r"'blk\.0\.attn_k\.weight' has the shape \(32, 64\), but \(64, 64\) is wanted "
        r"\(llama\.attention\.head_count_kv x llama\.attention\.key_length",
    ),
    "wrong number of factors": (
        {"extra": {"rope_freqs.weight": np.ones(7)}},
        r"'rope_freqs\.weight' has the shape \(7,\), but \(8,\)",
    ),
    "zero factor": ({"extra": {"rope_freqs.weight": np.zeros(8)}}, r"'rope_freqs\.weight' .* positive"),
    "one of two factors": ({"extra": {"rope_factors_long.weight": np.ones(8)}}, "must both be there"),
    "a norm that llama does not have": (
        {"extra": {"blk.1.attn_q_norm.weight": np.ones(16)}},
        r"'blk\.1\.attn_q_norm\.weight' is not part of the architecture 'llama'",
    ),
    "a vector as matrix": ({"drop": ["output.weight"], "extra": {"output.weight": np.ones(64)}}, r"'output\.weight'"),
}


@pytest.mark.parametrize("case", BAD)
def test_no_model(case: str, tmp_path: Path) -> None:
    options, message = BAD[case]
    write_tiny(tmp_path / "bad.gguf", "llama", **options)
    with pytest.raises(ModelError, match=message):
        load(tmp_path / "bad.gguf")


def test_biases_that_the_architecture_needs(tmp_path: Path) -> None:
    write_tiny(tmp_path / "bad.gguf", "qwen2", drop=["blk.1.attn_k.bias"])
    with pytest.raises(ModelError, match=r"'blk\.1\.attn_k\.bias' of shape \(32,\) is missing"):
        load(tmp_path / "bad.gguf")


def test_unsupported_and_quantised_vectors(tmp_path: Path) -> None:
    write_tiny(tmp_path / "bad.gguf", "llama", retype={"blk.0.attn_q.weight": "I32"})
    with pytest.raises(
        ModelError, match=r"'blk\.0\.attn_q\.weight' has the type I32; the supported types are F32, F16"
    ):
        load(tmp_path / "bad.gguf")
    write_tiny(tmp_path / "bad.gguf", "llama", retype={"output_norm.weight": "Q8_0"})
    with pytest.raises(ModelError, match=r"'output_norm\.weight' has the type Q8_0; a vector must be F32, F16 or BF16"):
        load(tmp_path / "bad.gguf")


@pytest.mark.parametrize("type_name", ["F16", "BF16"])
def test_half_precision_vectors(type_name: str, tmp_path: Path) -> None:
    tiny = write_tiny(tmp_path / "tiny.gguf", "llama", retype={"output_norm.weight": type_name})
    norm = load(tiny.path).weights.output_norm.data
    assert norm.dtype == np.float32
    assert np.abs(norm - tiny.weights["output_norm.weight"]).max() <= {"F16": 1e-3, "BF16": 8e-3}[type_name]


def test_what_the_model_does_not_use_is_named(tmp_path: Path) -> None:
    extra = {"something.else": np.ones(5), "blk.0.note": np.ones(2), "blk.0.attn_rot_embd.weight": np.ones(8)}
    tiny = write_tiny(tmp_path / "tiny.gguf", "llama", extra=extra)
    model = load(tiny.path)
    assert set(model.weights.unused) == set(extra)
    assert np.abs(reference(model).run(batch_of(ids_of())) - forward(tiny, ids_of())).max() <= 1e-9


@pytest.mark.parametrize("arch", ["qwen3", "phi3"])
def test_rope_freqs_are_used_wherever_they_are(arch: str, tmp_path: Path) -> None:
    plain = load(write_tiny(tmp_path / "plain.gguf", arch).path)
    extra = {"rope_freqs.weight": np.linspace(1, 8, len(plain.angles.inv_freq))}
    model = load(write_tiny(tmp_path / "scaled.gguf", arch, extra=extra).path)
    assert model.weights.unused == ()
    assert np.allclose(
        model.angles.inv_freq, plain.angles.inv_freq / np.float32(extra["rope_freqs.weight"]), rtol=1e-15
    )


def test_matrices_are_listed_once_and_stay_raw(tmp_path: Path) -> None:
    tiny = write_tiny(tmp_path / "tiny.gguf", "llama", type="Q4_1", tied=True)
    weights = load(tiny.path).weights
    assert [w.name for w in weights.matrices()].count("token_embd.weight") == 1
    assert len(weights.matrices()) == 1 + 2 * 7
    for w in weights.matrices():
        assert w.type == "Q4_1" and w.data.shape == (w.rows, w.cols // 32 * 20) and not w.data.flags.writeable
