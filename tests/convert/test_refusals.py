"""Folders that are damaged, incomplete or of another kind: what is said, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import sys

import pytest

pytest.importorskip("safetensors")
import numpy as np
from folders import tiny_pair
from safetensors.numpy import load_file, save_file


@pytest.fixture
def folder(tmp_path):
    return tiny_pair(tmp_path, "llama", shards=2)[1]


def edited(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def reshaped(folder, change):
    path = sorted(folder.glob("*.safetensors"))[0]
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "'architectures' is ['MixtralForCausalLM']"),
        ({"quantization_config": {"bits": 4}}, "'quantization_config'"),
        ({"num_local_experts": 8}, "'num_local_experts' is 8"),
        ({"hidden_act": "relu"}, "'relu'"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"hidden_size": "64"}, "'hidden_size' is '64'"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, "'factor' is -1"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": 1}}, "'mscale'"),
        ({"rope_scaling": {"type": ["yarn"], "factor": 2.0}}, "'type' is ['yarn']"),
        ({"rope_theta": "1e4"}, "'rope_theta' is '1e4'"),
        ({"num_hidden_layers": 10**9}, "4096 at most"),
        ({"num_hidden_layers": 3}, "no tensor for blk.2.attn_norm.weight"),
        ({"num_hidden_layers": 1}, "'model.layers.1."),
        ({"num_key_value_heads": 1}, "_proj.weight' has the shape (32, 64), but (16, 64)"),
        ({"attention_bias": True}, "no tensor for blk.0.attn_q.bias"),
    ],
)
def test_configurations(command, folder, tmp_path, changes, said):
    edited(folder, **changes)
    status, _, err = command("convert", folder, tmp_path / "out.gguf")
    assert status == 1
    assert said in err
    assert sorted(os.listdir(tmp_path)) == ["direct.gguf", "folder"]


def test_an_unknown_key_is_told(command, folder, tmp_path):
    edited(folder, strange_key=1)
    status, _, err = command("convert", folder, tmp_path / "out.gguf", "--dry-run")
    assert status == 0
    assert "'strange_key' is not known here" in err
    assert not (tmp_path / "out.gguf").exists()


def test_tensors(command, folder, tmp_path):
    path = sorted(folder.glob("*.safetensors"))[0]
    good, out = path.read_bytes(), tmp_path / "out.gguf"
    name = next(n for n in load_file(path) if n.endswith("proj.weight"))

    def said(change, kind="f16"):
        path.write_bytes(good)
        reshaped(folder, change)
        status, _, err = command("convert", folder, out, "--outtype", kind)
        assert status == 1
        assert not out.exists()
        return err

    assert f"tensor '{name}' of model.safetensors.index.json is missing" in said(lambda t: t.pop(name))
    assert "tensor 'odd' is not what model.safetensors.index.json says" in said(
        lambda t: t.update(odd=np.ones(3, np.float32))
    )
    assert f"tensor '{name}' has the type F64" in said(lambda t: t.update({name: t[name].astype(float)}))

    def one(value):
        def change(tensors):
            tensors[name][1, 2] = value

        return change

    assert f"tensor '{name}' holds NaN or infinity" in said(one(np.nan))
    assert f"tensor '{name}' has values up to 70000, which F16 cannot hold" in said(one(7e4))
    path.write_bytes(good[:-10])
    status, _, err = command("convert", folder, out)
    assert (status, "is damaged or cut short" in err) == (1, True)
    path.unlink()
    status, _, err = command("convert", folder, out)
    assert (status, "this shard is missing" in err) == (1, True)
    assert sorted(os.listdir(tmp_path)) == ["direct.gguf", "folder"]


def test_paths(command, folder, tmp_path):
    for out, said in (
        (folder / "config.json", "input and output are the same file"),
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "out.gguf", "does not exist"),
    ):
        status, _, err = command("convert", folder, out)
        assert status == 2
        assert said in err
    status, _, err = command("convert", tmp_path / "none", tmp_path / "out.gguf")
    assert (status, "is not a folder" in err) == (2, True)
    (folder / "tokenizer.model").unlink()
    status, _, err = command("convert", folder, tmp_path / "out.gguf")
    assert (status, "neither tokenizer.json nor tokenizer.model" in err) == (1, True)


def test_without_the_library(command, folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    status, _, err = command("convert", folder, tmp_path / "out.gguf")
    assert status == 2
    assert 'pip install "hybridkern[convert]"' in err
