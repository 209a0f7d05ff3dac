"""Importance matrices: both kinds of file, what is wrong with them, and what they do."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest
from shapes import MODELS, make

import hybridkern as hk
from hybridkern.gguf import GGUFFile
from hybridkern.quantize import read_importance
from hybridkern.quantize.importance import write_importance

VALUES = {"blk.0.ffn_down.weight": np.arange(1, 9), "blk.0.attn_q.weight": np.array([5.0, 0, 2, 7])}


def dat(entries, tail=b""):
    """The older format. entries: (name, calls, values)."""
    out = struct.pack("<i", len(entries))
    for name, calls, values in entries:
        out += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", calls, len(values))
        out += np.asarray(values, "<f4").tobytes()
    return out + tail


def test_a_gguf_file_is_read_as_it_was_written(tmp_path):
    sums = {name: np.append(v * 3.0, 3.0) for name, v in VALUES.items()}
    write_importance(tmp_path / "i.gguf", sums, 12, 512, ["text.txt"])
    made = read_importance(tmp_path / "i.gguf")
    assert (made.chunks, made.datasets, set(made.means)) == (12, ("text.txt",), set(VALUES))
    for name, v in VALUES.items():
        assert np.allclose(made.of(name, 1, len(v)), v[None])
    assert made.of("other", 1, 4) is None
    with pytest.raises(hk.ArgumentError, match="has 8 values, but 1 x 16 are needed"):
        made.of("blk.0.ffn_down.weight", 1, 16)
    # as gguf-py sees it: the layout that llama.cpp's tools agree on
    tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "i.gguf").tensors}
    assert set(tensors) == {f"{n}.{k}" for n in VALUES for k in ("in_sum2", "counts")}
    assert tensors["blk.0.attn_q.weight.in_sum2"].shape.tolist() == [4, 1]
    assert tensors["blk.0.attn_q.weight.counts"].data.tolist() == [[3.0]]
    reader = gguf.GGUFReader(tmp_path / "i.gguf")
    assert reader.fields["general.type"].contents() == "imatrix"
    assert reader.fields["imatrix.chunk_size"].contents() == 512


def test_a_dat_file(tmp_path):
    path = tmp_path / "i.dat"
    entries = [(name, 4, v * 4.0) for name, v in VALUES.items()]
    path.write_bytes(dat(entries))
    assert read_importance(path).chunks == 0
    path.write_bytes(dat(entries, struct.pack("<ii", 7, 4) + b"wiki"))
    made = read_importance(path)
    assert (made.chunks, made.datasets) == (7, ("wiki",))
    for name, v in VALUES.items():
        assert np.allclose(made.of(name, 1, len(v)), v[None])


def test_experts_have_counts_of_their_own(tmp_path):
    w = gguf.GGUFWriter(tmp_path / "i.gguf", "")
    w.add_string("general.type", "imatrix")
    w.add_tensor("x.weight.in_sum2", np.array([[2, 4], [0, 0], [9, 3]], np.float32))
    w.add_tensor("x.weight.counts", np.array([[2], [0], [3]], np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    assert read_importance(tmp_path / "i.gguf").of("x.weight", 3, 2).tolist() == [[1, 2], [1, 1], [3, 1]]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the number of entries"),
        (b"\x01", "the number of entries"),
        (struct.pack("<i", 1 << 30), "the length of the name of entry 0"),
        (struct.pack("<ii", 1, 1 << 30), "1073741824 bytes"),
        (struct.pack("<ii", 1, -5), "is said to take -5 bytes"),
        (dat([("x", 1, [1.0, 2.0])])[:-3], "tensor 'x' is said to take 8 bytes, but 5 are left"),
        (dat([("x", 1, [])]), "has 0 values"),
        (struct.pack("<ii", 1, 1) + b"x" + struct.pack("<ii", 1, 1 << 29), "is said to take 2147483648 bytes"),
        (dat([("x", 1, [1.0, np.nan])]), "negative, infinite or NaN"),
        (dat([("x", 1, [1.0, -1.0])]), "negative, infinite or NaN"),
        (dat([]), "holds no importance"),
        (dat([("x", 1, [1.0])], b"\x01\x00"), "the number of chunks"),
        (b"GGUF", "version"),
    ],
)
def test_malformed_files(tmp_path, data, said):
    (tmp_path / "i.dat").write_bytes(data)
    with pytest.raises(hk.GGUFError, match=said):
        read_importance(tmp_path / "i.dat")


def test_a_matrix_without_counts(tmp_path):
    w = gguf.GGUFWriter(tmp_path / "i.gguf", "")
    w.add_string("general.type", "imatrix")
    w.add_tensor("x.weight.in_sum2", np.ones((1, 4), np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    with pytest.raises(hk.GGUFError, match=r"with 'x.weight.counts' in F32 beside it"):
        read_importance(tmp_path / "i.gguf")


def test_it_is_used_and_told(command, tmp_path):
    model, out, plain = (tmp_path / f"{name}.gguf" for name in ("in", "out", "plain"))
    make(str(model), *MODELS["gemma3-18"])
    rng = np.random.default_rng(0)
    heavy = np.ones(2048)
    heavy[rng.permutation(2048)[:200]] = 100
    name = "blk.4.ffn_down.weight"
    write_importance(tmp_path / "i.gguf", {name: np.append(heavy, 1)}, 3, 512, ["text.txt"])
    status, _, err = command("quantize", model, out, "Q4_K_S", "--imatrix", tmp_path / "i.gguf")
    assert status == 0
    assert "126 of the matrices are not in" in err
    assert command("quantize", model, plain, "Q4_K_S")[0] == 0
    files = [GGUFFile.open(p) for p in (model, out, plain)]
    x = files[0].data(name).view(np.float16).reshape(2, 2048).astype(np.float32)
    errors = [(hk.quants.dequantize(f.data(name), "Q4_K", (2, 2048)) - x) ** 2 for f in files[1:]]
    assert errors[0][:, heavy > 1].sum() < 0.7 * errors[1][:, heavy > 1].sum()
    m = files[1].metadata
    assert m["quantize.imatrix.dataset"] == "text.txt"
    assert (m["quantize.imatrix.entries_count"], m["quantize.imatrix.chunks_count"]) == (1, 3)
    write_importance(tmp_path / "i.gguf", {name: np.ones(1025)}, 3, 512, ["text.txt"])
    status, _, err = command("quantize", model, out, "Q4_K_S", "--imatrix", tmp_path / "i.gguf")
    assert status == 2
    assert "has 1024 values, but 1 x 2048 are needed" in err
