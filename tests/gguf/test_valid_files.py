"""Valid files load, and give what gguf-py's reader gives."""

from __future__ import annotations

import time

import gguf
import numpy as np
import pytest
from builder import ARRAY, F32, I32, STRING, U32, Tensor, build

from hybridkern.errors import GGUFError
from hybridkern.gguf import GGUFFile


def assert_same_as_gguf_py(path: str, file: GGUFFile) -> None:
    reference = gguf.GGUFReader(path)
    fields = {k: f for k, f in reference.fields.items() if not k.startswith("GGUF.")}
    assert list(file.metadata) == list(fields)
    for key, field in fields.items():
        ours, theirs = file.metadata[key], field.contents()
        if isinstance(ours, np.ndarray):
            assert ours.tolist() == theirs, key
        else:
            assert ours == theirs and type(ours) is type(theirs), key
    assert list(file.tensors) == [t.name for t in reference.tensors]
    for t in reference.tensors:
        info = file.tensors[t.name]
        assert info.shape == tuple(t.shape.tolist())
        assert info.type.id == int(t.tensor_type)
        assert (info.offset, info.nbytes, info.n_elements) == (t.data_offset, t.n_bytes, t.n_elements)
        assert file.data(t.name).tobytes() == t.data.tobytes()


@pytest.fixture
def written(tmp_path) -> str:
    """A file from gguf-py's writer: every scalar type, arrays, quantised and float tensors, alignment 64."""
    path = str(tmp_path / "written.gguf")
    w = gguf.GGUFWriter(path, "llama")
    w.add_custom_alignment(64)
    w.add_uint8("x.u8", 255)
    w.add_int8("x.i8", -128)
    w.add_uint16("x.u16", 65535)
    w.add_int16("x.i16", -5)
    w.add_uint32("x.u32", 2**32 - 1)
    w.add_int32("x.i32", -7)
    w.add_uint64("x.u64", 2**64 - 1)
    w.add_int64("x.i64", -(2**63))
    w.add_float32("x.f32", 0.1)
    w.add_float64("x.f64", 0.1)
    w.add_bool("x.bool", False)
    w.add_string("x.text", "grüße 🦙")
    w.add_array("x.ints", [1, -2, 3])
    w.add_array("x.floats", [0.5, 0.25])
    w.add_array("x.strings", ["", "a", "same", "same"])
    rng = np.random.default_rng(1)
    dense = rng.standard_normal((6, 512)).astype(np.float32)
    w.add_tensor("dense", dense)
    w.add_tensor("half", dense.astype(np.float16))
    w.add_tensor("cube", dense.reshape(2, 3, 512))
    for name in ("Q4_0", "Q8_0", "BF16"):
        t = gguf.GGMLQuantizationType[name]
        w.add_tensor(f"t.{name}", gguf.quants.quantize(dense, t), raw_dtype=t)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


@pytest.mark.parametrize("mmap", [True, False])
def test_same_as_gguf_py(written, mmap):
    with GGUFFile.open(written, mmap=mmap) as file:
        assert_same_as_gguf_py(written, file)
        assert file.alignment == 64 and file.version == 3


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions(write, version):
    tensor = Tensor("w", 0, (2,), b"\0\0\x80\x3f\0\0\0\x40")
    path = write(build([("k", U32, 9)], [tensor], version=version))
    with GGUFFile.open(path) as file:
        assert file.version == version and file.metadata["k"] == 9
        assert file.data("w").view("<f4").tolist() == [1.0, 2.0]


@pytest.mark.parametrize("mmap", [True, False])
def test_data_and_address(sample, write, mmap):
    with GGUFFile.open(write(sample), mmap=mmap) as file:
        for name, info in file.tensors.items():
            data = file.data(name)
            assert data.dtype == np.uint8 and data.shape == (info.nbytes,) and not data.flags.writeable
            with pytest.raises(ValueError):
                data.flags.writeable = True
            assert data.ctypes.data == file.address(name)
            assert info.offset == sample.marks[f"data:{name}"]
            assert file.address(name) % 32 == 0
            assert data.tobytes() == sample.data[info.offset : info.offset + info.nbytes]
        assert file.tensors["blk.0.h.weight"].shape == (5, 1, 2)
        assert file.tensors["blk.0.h.weight"].numpy_shape == (2, 1, 5)
        assert file.tensors["blk.0.q.weight"].row_bytes == 144


def test_must_load(sample, write):
    """No output.weight, duplicate and invalid token strings, an extra tensor, head_count_kv as an array."""
    with GGUFFile.open(write(sample)) as file:
        m = file.metadata
        tokens = m.get_array("tokenizer.ggml.tokens", of="str")
        assert tokens[:5] == ["<s>", "ä", "", "same", "same"]
        assert tokens[5].encode("utf-8", "surrogateescape") == b"\xff\xfe"
        assert m.get_array("llama.attention.head_count_kv", of="int").tolist() == [4, 2]
        assert "output.weight" not in file.tensors and "rope_freqs.weight" in file.tensors
        assert m["a.flags"].tolist() == [True, False, True]
        assert m.get_array("empty.numbers").size == 0 and m["empty.strings"] == []


def test_typed_getters(sample, write):
    with GGUFFile.open(write(sample)) as file:
        m = file.metadata
        assert m.get_int("llama.block_count") == 2 and m.get_int("nope", None) is None
        assert m.get_int("a.wide") == 2**63 + 5 and m.get_int("a.long") == -(2**62)
        assert m.get_float("llama.rope.freq_base") == 1e4 and m.get_float("a.byte") == 200.0
        assert m.get_str("general.architecture") == "llama" and m.get_bool("a.flag") is True
        assert m.get_array("nope", None, of="str") is None
        for call, key, found, wanted in (
            (m.get_int, "general.architecture", "string", "integer"),
            (m.get_int, "a.flag", "bool", "integer"),
            (m.get_int, "a.double", "float64", "integer"),
            (m.get_float, "a.flag", "bool", "float"),
            (m.get_str, "llama.block_count", "uint32", "string"),
            (m.get_bool, "a.byte", "uint8", "bool"),
            (m.get_array, "a.byte", "uint8", "array"),
            (lambda k: m.get_array(k, of="str"), "tokenizer.ggml.scores", "array of float32", "array of str"),
        ):
            with pytest.raises(GGUFError) as e:
                call(key)
            message = str(e.value)
            assert key in message and found in message and wanted in message
            assert str(sample.marks[f"key:{key}:length"]) in message
        with pytest.raises(GGUFError, match=r"not\.there.*missing"):
            m.get_int("not.there")
        with pytest.raises(KeyError):
            m["not.there"]


def test_nested_arrays(write):
    value = (ARRAY, [(I32, [1, 2]), (STRING, ["x"]), (F32, [])])
    with GGUFFile.open(write(build([("n", ARRAY, value), ("after", U32, 5)]))) as file:
        a, b, c = file.metadata["n"]
        assert a.tolist() == [1, 2] and b == ["x"] and c.size == 0 and file.metadata["after"] == 5


def test_no_tensors_and_no_padding(write):
    built = build([("k", U32, 1)])
    with GGUFFile.open(write(built.data[: built.marks["table"]])) as file:
        assert not file.tensors and file.metadata["k"] == 1


def test_lifetime_of_views(sample, write):
    for mmap in (True, False):
        file = GGUFFile.open(write(sample), mmap=mmap)
        view = file.data("blk.0.q.weight")
        file.close()
        file.close()
        assert (view == 7).all()
        assert file.metadata["tokenizer.ggml.tokens"][0] == "<s>"
        for call in (file.data, file.address, file.release):
            with pytest.raises(GGUFError, match=r"closed.*blk\.0\.q\.weight"):
                call("blk.0.q.weight")
        with pytest.raises(GGUFError, match="closed"):
            file.check_intact()
    with GGUFFile.open(write(sample)) as file, pytest.raises(GGUFError, match=r"m\.gguf.*no tensor 'gone'"):
        file.data("gone")


@pytest.mark.parametrize("mmap", [True, False])
def test_release(write, mmap):
    raw = np.random.default_rng(3).integers(0, 256, 1 << 16, np.uint8).tobytes()
    tensors = [Tensor("a", 24, (100,), raw[:100]), Tensor("b", 24, (len(raw),), raw), Tensor("c", 24, (9,), raw[:9])]
    with GGUFFile.open(write(build((), tensors)), mmap=mmap) as file:
        views = {name: file.data(name) for name in "abc"}
        file.release("b")
        assert views["a"].tobytes() == raw[:100] and views["c"].tobytes() == raw[:9]
        assert file.data("b").tobytes() == raw == views["b"].tobytes()


def test_large_vocabulary_opens_quickly(write):
    n = 262_144
    tokens = [f"token {i}" for i in range(n)]
    built = build([("t", ARRAY, (STRING, tokens)), ("merges", ARRAY, (STRING, tokens)), ("s", ARRAY, (F32, [0.0] * n))])
    path = write(built)
    start = time.process_time()
    file = GGUFFile.open(path)
    opened = time.process_time()
    assert file.metadata["t"] == tokens
    decoded = time.process_time()
    file.close()
    assert opened - start < 0.5 and decoded - opened < 1.0
