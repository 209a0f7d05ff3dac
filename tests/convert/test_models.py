"""Converted folders against GGUF files of the same weights that were written directly."""

from __future__ import annotations

import pytest

pytest.importorskip("safetensors")
import numpy as np
from cases import CASES, ids_of
from folders import TEMPLATE, tiny_pair
from running import batch_of, load, reference

from hybridkern.convert import convert_folder, inspect_folder
from hybridkern.gguf import GGUFFile
from hybridkern.text.fields import TokenType

LEFT_OUT = {
    "llama-kv-array": "no folder says it",
    "llama-partial-rotary": "no folder says it",
    "gemma2-46": "slow: the scale of queries has a test of its own",
    "gemma3-62": "slow: the scale of queries has a test of its own",
}


@pytest.mark.parametrize("case", [c for c in CASES if c not in LEFT_OUT])
def test_the_same_bits_as_written_directly(case, tmp_path):
    arch, options = CASES[case]
    tiny, folder = tiny_pair(tmp_path, arch, shards=3 if case == "llama" else 1, **options)
    out = tmp_path / "out.gguf"
    written = convert_folder(inspect_folder(folder, "f32"), out)
    assert written == out.stat().st_size
    with GGUFFile.open(out) as file, GGUFFile.open(tiny.path) as direct:
        assert set(file.tensors) == set(direct.tensors)
        for name, info in file.tensors.items():
            assert info.type.name == "F32"
            ours, theirs = (f.data(name).view("<f4") for f in (file, direct))
            if name == "rope_freqs.weight":
                assert np.allclose(ours, theirs, rtol=3e-7)
            else:
                assert np.array_equal(ours, theirs), name
        for key in ("token_type", "scores", "merges", "pre", "eos_token_id", "bos_token_id"):
            key = f"tokenizer.ggml.{key}"
            if key in direct.metadata:
                assert np.array_equal(file.metadata[key], direct.metadata[key]), key
        used = np.asarray(direct.metadata["tokenizer.ggml.token_type"]) != TokenType.UNUSED
        ours, theirs = (np.array(f.metadata["tokenizer.ggml.tokens"]) for f in (file, direct))
        assert np.array_equal(ours[used], theirs[used])
        assert file.metadata["tokenizer.chat_template"] == TEMPLATE
    ours, theirs = load(out), load(tiny.path)
    if "longrope" not in case and case != "llama-llama3":
        assert ours.config == theirs.config
    ids = ids_of()
    batch = batch_of(ids, variant=None if theirs.long_after is None else int(len(ids) > theirs.long_after))
    logits, wanted = reference(ours).run(batch), reference(theirs).run(batch)
    assert np.abs(wanted).max() > 0.5
    if case == "llama-llama3":
        assert np.abs(logits - wanted).max() < 1e-5
    else:
        assert np.array_equal(logits, wanted)


@pytest.mark.parametrize("kind", ["f16", "bf16", "auto"])
def test_halves(kind, tmp_path):
    """Matrices are rounded to the nearest, even at a tie; vectors stay float32."""
    tiny, folder = tiny_pair(tmp_path, "qwen2")
    convert_folder(inspect_folder(folder, kind), tmp_path / "out.gguf")
    with GGUFFile.open(tmp_path / "out.gguf") as file:
        assert file.metadata["general.file_type"] == (1 if kind == "f16" else 32)
        assert file.tensors["blk.0.attn_q.bias"].type.name == "F32"
        values = tiny.weights["blk.1.ffn_down.weight"].astype(np.float32)
        data = file.data("blk.1.ffn_down.weight").view("<u2").reshape(values.shape)
    if kind == "f16":
        assert np.array_equal(data.view("<f2"), values.astype(np.float16))
    else:
        bits = values.view(np.uint32)
        assert np.array_equal(data, ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16))


def test_scale_of_queries(tmp_path):
    """query_pre_attn_scalar is written where it is not the size of a head."""
    import json

    _, folder = tiny_pair(tmp_path, "gemma2", n_layer=2, tied=True)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"query_pre_attn_scalar": 100}))
    convert_folder(inspect_folder(folder), tmp_path / "out.gguf")
    assert load(tmp_path / "out.gguf").config.attention_scale == pytest.approx(0.1, rel=1e-7)
