"""`hybridkern quantize`: what is written, what is refused, and that nothing half-written stays behind."""

from __future__ import annotations

import os
import struct

import gguf
import numpy as np
import pytest
from gguf import GGUFReader
from shapes import MODELS, make

import hybridkern as hk
from hybridkern.gguf import GGUFFile


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "in.gguf"
    make(str(path), *MODELS["gemma3-18"])
    return path


def left(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_file_is_written(command, model, tmp_path):
    out = tmp_path / "out.gguf"
    status, text, err = command("quantize", model, out, "q4_k_m", "-t", 2)
    assert (status, err) == (0, "")
    assert "blk.0.attn_q.weight" in text
    assert "F16 -> Q5_0" in text
    assert "Q5_0 in place of Q4_K: rows of 640 are no multiple of 256" in text
    assert "19 other tensors are copied" in text
    assert f"{out.stat().st_size} bytes" in text
    assert left(tmp_path) == ["in.gguf", "out.gguf"]
    reader = GGUFReader(out)
    assert reader.fields["general.file_type"].contents() == 15
    assert reader.fields["general.quantization_version"].contents() == 2
    before = {t.name: t for t in GGUFReader(model).tensors}
    assert [t.name for t in reader.tensors] == list(before)
    for t in reader.tensors:
        x = gguf.dequantize(t.data, t.tensor_type)
        y = gguf.dequantize(before[t.name].data, before[t.name].tensor_type)
        assert x.shape == y.shape
        assert np.sqrt(((x - y) ** 2).mean()) <= 0.08 * np.sqrt((y**2).mean())


def test_the_model_still_runs(command, tiny_path, tmp_path):
    out = tmp_path / "out.gguf"
    assert command("quantize", tiny_path, out, "Q8_0")[0] == 0
    ids = [1, 300, 301, 302, 303]
    with hk.load(tiny_path, threads=1) as a, hk.load(out, threads=1) as b:
        p, q = a.logits(ids), b.logits(ids)
        assert a.vocabulary.n_tokens == b.vocabulary.n_tokens
    assert np.abs(p - q).max() < 0.1 * np.abs(p).max()


def test_a_dry_run_shows_sizes_and_writes_nothing(command, model, tmp_path):
    status, text, _ = command("quantize", model, tmp_path / "out.gguf", "Q2_K", "--dry-run")
    assert status == 0
    assert "nothing written" in text
    assert left(tmp_path) == ["in.gguf"]
    command("quantize", model, tmp_path / "out.gguf", "Q2_K")
    data = sum(t.nbytes for t in GGUFFile.open(tmp_path / "out.gguf").tensors.values())
    assert f" -> {data / 1024:.1f} KiB," in text


def test_metadata_are_carried_over_to_the_byte(command, model, tmp_path):
    """Texts that are no UTF-8, empty arrays and arrays of arrays too; what says how a file was split is not."""
    w = gguf.GGUFWriter(tmp_path / "odd.gguf", "llama")
    w.add_key_value("odd.text", b"\xff\xfe", gguf.GGUFValueType.STRING)
    w.add_key_value("odd.number", -5, gguf.GGUFValueType.INT16)
    w.add_key_value("odd.list", [1.5, float("nan")], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.FLOAT32)
    w.add_key_value("odd.nested", [[1, 2], [3]], gguf.GGUFValueType.ARRAY)
    w.add_key_value("split.count", 0, gguf.GGUFValueType.UINT16)
    w.add_file_type(1)
    w.add_tensor("x.weight", np.ones((4, 64), np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    assert command("quantize", tmp_path / "odd.gguf", tmp_path / "out.gguf", "Q4_0")[0] == 0
    a, b = GGUFFile.open(tmp_path / "odd.gguf"), GGUFFile.open(tmp_path / "out.gguf")
    kept = [key for key in a.metadata if not key.startswith("split.")]
    assert list(b.metadata) == [*kept, "general.quantization_version"]
    for key in kept:
        if key != "general.file_type":
            assert a.metadata.raw(key) == b.metadata.raw(key)
    assert b.metadata["general.file_type"] == 2


def test_alignment_is_kept(command, tmp_path):
    w = gguf.GGUFWriter(tmp_path / "in.gguf", "llama")
    w.add_custom_alignment(128)
    for i in range(3):
        w.add_tensor(f"x{i}.weight", np.ones((3, 32), np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    assert command("quantize", tmp_path / "in.gguf", tmp_path / "out.gguf", "Q4_0")[0] == 0
    file = GGUFFile.open(tmp_path / "out.gguf")
    assert file.alignment == 128
    assert all((t.offset % 128, t.type.name) == (0, "Q4_0") for t in file.tensors.values())
    assert hk.quants.dequantize(file.data("x2.weight"), "Q4_0", (3, 32)).min() > 0.99


def test_a_split_model_becomes_one_file(command, model, tmp_path):
    parts = tmp_path / "parts"
    parts.mkdir()
    file = GGUFFile.open(model)
    w = gguf.GGUFWriter(parts / "m.gguf", "gemma3", split_max_tensors=60)
    for key in file.metadata:
        if key != "general.architecture":
            kind = {"uint32": w.add_uint32, "float32": w.add_float32}[file.metadata.type_of(key)]
            kind(key, file.metadata[key])
    for t in GGUFReader(model).tensors:
        w.add_tensor(t.name, np.array(t.data))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    first = sorted(parts.iterdir())[0]
    assert first.name.endswith("-00001-of-00003.gguf")
    assert command("quantize", first, tmp_path / "a.gguf", "Q4_K_S")[0] == 0
    assert command("quantize", model, tmp_path / "b.gguf", "Q4_K_S")[0] == 0
    a, b = GGUFFile.open(tmp_path / "a.gguf"), GGUFFile.open(tmp_path / "b.gguf")
    assert "split.count" not in a.metadata
    assert set(a.tensors) == set(b.tensors)
    for name in a.tensors:
        assert np.array_equal(a.data(name), b.data(name))
    status, _, err = command("quantize", first, sorted(parts.iterdir())[1], "Q4_0")
    assert status == 2
    assert "input and output are the same file" in err


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["{in}", "{in}", "Q4_0"], 2, "input and output are the same file"),
        (["{in}", "{link}", "Q4_0"], 2, "input and output are the same file"),
        (["{in}", "{folder}", "Q4_0"], 2, "is a folder"),
        (["{in}", "{folder}/no/out.gguf", "Q4_0"], 2, "does not exist"),
        (["{in}", "{out}", "Q9"], 2, "'Q9' is not a file type"),
        (["{folder}/none.gguf", "{out}", "Q4_0"], 1, "none.gguf"),
        (["{in}", "{out}", "Q4_0", "--tensor-type", "ffn"], 2, "is not REGEX=TYPE"),
        (["{in}", "{out}", "Q4_0", "--tensor-type", "ffn=Q7"], 2, "'Q7' is not a type that can be written"),
        (["{in}", "{out}", "Q4_0", "--tensor-type", "fnf=Q8_0"], 2, "is found in none of the"),
        (["{in}", "{out}", "Q4_0", "--output-tensor-type", "MXFP4"], 2, "--output-tensor-type: 'MXFP4'"),
        (["{in}", "{out}", "Q4_0", "0"], 2, "out of range"),
        (["{in}", "{out}", "Q4_0", "2", "-t", "1"], 2, "give one of them"),
        (["{in}", "{out}", "Q4_0", "--imatrix", "{in}"], 1, "general.type is ''"),
        (["{in}", "{out}", "Q4_0", "--imatrix", "{folder}/none"], 1, "cannot be opened"),
    ],
)
def test_what_is_refused(command, model, tmp_path, words, status, said):
    os.symlink(model, tmp_path / "link.gguf")
    before = left(tmp_path)
    names = {"in": model, "folder": tmp_path, "out": tmp_path / "out.gguf", "link": tmp_path / "link.gguf"}
    got, _, err = command("quantize", *(word.format(**names) for word in words))
    assert got == status
    assert said in err
    assert left(tmp_path) == before


def patched(model, name, at, value):
    """The file with one value of a tensor replaced."""
    file = GGUFFile.open(model)
    info = file.tensors[name]
    code = {"F16": "<H", "F32": "<I"}[info.type.name]
    data = bytearray(model.read_bytes())
    struct.pack_into(code, data, info.offset + at * struct.calcsize(code), value)
    model.write_bytes(data)


@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E01])
def test_numbers_that_are_not_finite_are_an_error_with_the_tensors_name(command, model, tmp_path, bits):
    patched(model, "blk.7.ffn_up.weight", 640 + 33, bits)
    status, _, err = command("quantize", model, tmp_path / "out.gguf", "Q6_K")
    assert status == 1
    assert "tensor 'blk.7.ffn_up.weight' (F16): NaN or infinity at row 1, column 33" in err
    assert left(tmp_path) == ["in.gguf"]


def test_vectors_that_are_copied_are_looked_at_too(command, model, tmp_path):
    patched(model, "blk.3.attn_norm.weight", 5, 0x7F800000)
    status, _, err = command("quantize", model, tmp_path / "out.gguf", "Q6_K")
    assert status == 1
    assert "'blk.3.attn_norm.weight' (F32), block 5" in err
    assert left(tmp_path) == ["in.gguf"]


def test_what_stood_there_stays_until_the_new_file_is_complete(command, model, tmp_path):
    out = tmp_path / "out.gguf"
    out.write_bytes(b"old")
    patched(model, "blk.17.ffn_down.weight", 1, 0x7C00)
    assert command("quantize", model, out, "Q6_K")[0] == 1
    assert out.read_bytes() == b"old"
    patched(model, "blk.17.ffn_down.weight", 1, 0)
    assert command("quantize", model, out, "Q6_K")[0] == 0
    assert out.read_bytes().startswith(b"GGUF")


def test_quantised_files_are_quantised_again_only_when_asked(command, model, tmp_path):
    q8, out = tmp_path / "q8.gguf", tmp_path / "out.gguf"
    assert command("quantize", model, q8, "Q8_0")[0] == 0
    status, _, err = command("quantize", q8, out, "Q4_0")
    assert status == 2
    assert "is Q8_0 already" in err
    assert "--allow-requantize" in err
    assert command("quantize", q8, out, "Q4_0", "--allow-requantize")[0] == 0
    assert command("quantize", q8, out, "Q8_0")[0] == 0  # everything is copied
    for t in GGUFFile.open(out).tensors.values():
        assert np.array_equal(GGUFFile.open(out).data(t.name), GGUFFile.open(q8).data(t.name))


def test_rules_and_types_by_name(command, model, tmp_path):
    out = tmp_path / "out.gguf"
    words = ("--tensor-type", r"blk\.0\.=Q8_0", "--tensor-type", "ffn_down=f16", "--token-embedding-type", "q4_1")
    status, text, _ = command("quantize", model, out, "Q4_0", *words)
    assert status == 0
    types = {name: t.type.name for name, t in GGUFFile.open(out).tensors.items()}
    assert types["blk.0.ffn_down.weight"] == "Q8_0"
    assert types["blk.1.ffn_down.weight"] == "F16"
    assert types["blk.1.ffn_up.weight"] == "Q4_0"
    assert types["token_embd.weight"] == "Q4_1"
    assert r"(--tensor-type blk\.0\.)" in text


def test_a_file_that_is_cut_short_meanwhile(model, tmp_path, monkeypatch):
    """What a mapped file has lost reads as zeros: they must not become a model."""
    from hybridkern.quantize import FILE_TYPES, Wishes, plan, quantize_file

    with GGUFFile.open(model) as file:
        targets = plan(file, FILE_TYPES["Q4_0"], Wishes())
        os.truncate(model, model.stat().st_size - 100)
        with pytest.raises(hk.GGUFError, match="cut short"):
            quantize_file(file, tmp_path / "out.gguf", FILE_TYPES["Q4_0"], targets)
    assert left(tmp_path) == ["in.gguf"]
