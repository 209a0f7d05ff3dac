"""Configurations: what real models' keys mean, and what senseless keys answer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from fake_metadata import metadata_of

from hybridkern.errors import ModelError
from hybridkern.model import ModelConfig


def config_of(arch: str, **keys: Any) -> ModelConfig:
    return ModelConfig.from_metadata(metadata_of(arch, **keys))


def windows(config: ModelConfig) -> list[int]:
    return [b.window for b in config.blocks]


def test_windows_alternate_in_gemma2() -> None:
    assert windows(config_of("gemma2", block_count=5)) == [4096, 0, 4096, 0, 4096]


def test_every_sixth_block_is_global_in_gemma3() -> None:
    config = config_of("gemma3", block_count=13, attention__sliding_window=512)
    assert windows(config) == [512] * 5 + [0] + [512] * 5 + [0] + [512]


@pytest.mark.parametrize("pattern", [3, np.array([True, True, False] * 2)])
def test_the_pattern_of_the_file_wins(pattern: Any) -> None:
    keys = {"attention__sliding_window": 512, "attention__sliding_window_pattern": pattern}
    assert windows(config_of("gemma3", block_count=6, **keys)) == [512, 512, 0] * 2


def test_mistral_and_phi3_slide_in_every_block() -> None:
    for arch in ("llama", "phi3"):
        assert windows(config_of(arch, attention__sliding_window=2047)) == [2047, 2047]
        assert windows(config_of(arch)) == [0, 0]
    assert windows(config_of("qwen2", attention__sliding_window=2047)) == [0, 0]


def test_scales_and_caps() -> None:
    config = config_of("gemma2", attention__key_length=32, attention__value_length=32)
    assert config.embedding_scale == 16.0
    assert config.attention_scale == pytest.approx(1 / math.sqrt(32))
    assert (config.attention_softcap, config.final_softcap) == (50.0, 30.0)
    assert config_of("gemma3").final_softcap == 0.0
    assert config_of("llama").embedding_scale == 1.0


@pytest.mark.parametrize(
    ("arch", "blocks", "width", "heads", "wanted"), [("gemma2", 46, 4608, 32, 144), ("gemma3", 62, 5376, 32, 168)]
)
def test_the_27b_models_scale_queries_by_their_width(
    arch: str, blocks: int, width: int, heads: int, wanted: int
) -> None:
    keys: dict[str, Any] = {"embedding_length": width, "attention__head_count": heads}
    keys |= {"attention__key_length": 128, "attention__value_length": 128}
    assert config_of(arch, block_count=blocks, **keys).attention_scale == pytest.approx(wanted**-0.5)
    assert config_of(arch, block_count=26, **keys).attention_scale == pytest.approx(128**-0.5)


def test_defaults() -> None:
    config = config_of("llama")
    assert (config.head_dim_k, config.head_dim_v, config.rope.dims) == (64, 64, 64)
    assert config.blocks[0].n_head_kv == 4
    assert (config.rope.base, config.rope.scaling) == (10000.0, "none")


def test_old_files_scale_linearly() -> None:
    rope = config_of("llama", rope__scale_linear=4.0).rope
    assert (rope.scaling, rope.factor) == ("linear", 4.0)


def test_per_block_arrays() -> None:
    config = config_of("llama", attention__head_count_kv=np.array([4, 1]), feed_forward_length=np.array([64, 128]))
    assert [(b.n_head_kv, b.n_ff) for b in config.blocks] == [(4, 64), (1, 128)]


REQUIRED = ("block_count", "embedding_length", "context_length", "feed_forward_length")
REQUIRED += ("attention__head_count", "attention__layer_norm_rms_epsilon")


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_key_is_named(name: str) -> None:
    with pytest.raises(ModelError, match=rf"'llama\.{name.replace('__', '[.]')}' is missing; .* expected"):
        config_of("llama", **{name: None})


BAD: list[tuple[str, Any, str]] = [
    ("block_count", 0, "is 0; an integer from 1"),
    ("block_count", 2**32 - 1, "is 4294967295"),
    ("block_count", -1, "is -1"),
    ("block_count", "two", "wrong type"),
    ("block_count", 2.0, "wrong type"),
    ("embedding_length", 0, "is 0"),
    ("embedding_length", 2**60, "is 1152921504606846976"),
    ("embedding_length", 254, "does not divide"),
    ("context_length", 0, "is 0"),
    ("feed_forward_length", 0, "is 0 for block 0"),
    ("feed_forward_length", np.array([512, 512, 512]), "has 3 values; .* 2 of them"),
    ("feed_forward_length", np.array([512, -1]), "is -1 for block 1"),
    ("feed_forward_length", "wide", "wrong type"),
    ("feed_forward_length", np.array([1.5, 2.5]), "wrong type"),
    ("attention__head_count", 0, "is 0"),
    ("attention__head_count_kv", 0, "is 0 for block 0"),
    ("attention__head_count_kv", 3, "must be a multiple"),
    ("attention__head_count_kv", np.array([4, 0]), "is 0 for block 1"),
    ("attention__key_length", 0, "is 0"),
    ("attention__layer_norm_rms_epsilon", 0.0, "is 0"),
    ("attention__layer_norm_rms_epsilon", math.nan, "is nan"),
    ("attention__layer_norm_rms_epsilon", -1e-5, "is -1e-05"),
    ("attention__sliding_window", -1, "is -1"),
    ("attention__sliding_window_pattern", np.array([True]), "has 1 values"),
    ("attention__sliding_window_pattern", "odd", "is 'odd'"),
    ("attention__causal", False, "causal"),
    ("rope__dimension_count", 7, "even"),
    ("rope__dimension_count", 66, "from 2 to 64"),
    ("rope__freq_base", 0.0, "is 0"),
    ("rope__freq_base", math.inf, "is inf"),
    ("rope__scaling__type", "spiral", "is 'spiral'; one of none, linear, yarn, longrope"),
    ("rope__scaling__factor", math.nan, "is nan"),
    ("rope__scaling__factor", -2.0, "is -2"),
    ("final_logit_softcapping", math.inf, "is inf"),
    ("expert_count", 8, "mixtures of experts"),
    ("vocab_size", None, r"tokenizer\.ggml\.tokens.* is missing"),
    ("vocab_size", 0, "is 0"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD, ids=[f"{n}={v}" for n, v, _ in BAD])
def test_a_senseless_value_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        config_of("llama", **{name: value})
    if value is not None:
        assert f"llama.{name.replace('__', '.')}" in str(caught.value)


def test_an_unknown_architecture_lists_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"'mamba'.* gemma2, gemma3, llama, phi3, qwen2, qwen3"):
        config_of("mamba")


def test_no_architecture_at_all() -> None:
    metadata = metadata_of("llama")
    del metadata["general.architecture"]
    with pytest.raises(ModelError, match=r"'general\.architecture' is missing"):
        ModelConfig.from_metadata(metadata)
    metadata["general.architecture"] = 3
    with pytest.raises(ModelError, match=r"'general\.architecture' has the wrong type"):
        ModelConfig.from_metadata(metadata)
