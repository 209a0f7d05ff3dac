"""Models split over several files: all parts open as one, and parts that are missing or disagree are named."""

from __future__ import annotations

import os

import numpy as np
import pytest
from builder import ARRAY, BOOL, F32, I32, STRING, U16, U32, Tensor, build

from hybridkern.errors import GGUFError
from hybridkern.gguf import GGUFFile


def error_of(path: str) -> str:
    with pytest.raises(GGUFError) as e:
        GGUFFile.open(path)
    assert path in str(e.value)
    return str(e.value)


def split_model(tmp_path, **changes) -> list[str]:
    """Three parts of one tensor each. changes: key of part i, as `no1`, `count2`, `total0`, or `name2`, `extra1`."""
    paths = []
    for i in range(3):
        keys = [
            ("split.no", U16, changes.get(f"no{i}", i)),
            ("split.count", U16, changes.get(f"count{i}", 3)),
            ("split.tensors.count", I32, changes.get(f"total{i}", 3)),
        ]
        metadata = (
            [("general.architecture", STRING, "llama"), ("n", U32, 5)] if i == 0 else changes.get(f"extra{i}", [])
        )
        tensor = Tensor(changes.get(f"name{i}", f"w{i}"), 0, (2,), np.full(2, i, "<f4").tobytes())
        path = tmp_path / f"model-{i + 1:05d}-of-00003.gguf"
        path.write_bytes(build([*metadata, *keys], [tensor]).data)
        paths.append(str(path))
    return paths


@pytest.mark.parametrize("mmap", [True, False])
def test_split_opens_all(tmp_path, mmap):
    paths = split_model(tmp_path)
    with GGUFFile.open(paths[0], mmap=mmap) as file:
        assert list(file.tensors) == ["w0", "w1", "w2"] and file.paths == tuple(paths)
        for i in range(3):
            assert file.tensors[f"w{i}"].part == i
            assert file.data(f"w{i}").view("<f4").tolist() == [i, i]
        assert file.metadata["n"] == 5 and file.nbytes == sum(os.path.getsize(p) for p in paths)


def test_split_second_part_given(tmp_path):
    paths = split_model(tmp_path)
    for no in (1, 2):
        message = error_of(paths[no])
        assert paths[0] in message and f"part {no + 1} of 3" in message
    renamed = str(tmp_path / "renamed.gguf")
    os.rename(paths[1], renamed)
    assert "-00001-of-00003.gguf" in error_of(renamed)


@pytest.mark.parametrize("missing", [1, 2])
def test_split_part_missing(tmp_path, missing):
    paths = split_model(tmp_path)
    os.unlink(paths[missing])
    assert paths[missing] in error_of(paths[0])


def test_split_first_part_renamed(tmp_path):
    paths = split_model(tmp_path)
    renamed = str(tmp_path / "first.gguf")
    os.rename(paths[0], renamed)
    assert "-00001-of-00003.gguf" in error_of(renamed)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"no1": 2}, ("00002-of", "split.no")),
        ({"no2": 0}, ("00003-of", "split.no")),
        ({"count1": 4}, ("00002-of", "split.count")),
        ({"count0": 2}, ("00001-of", "2 parts")),
        ({"total2": 4}, ("00003-of", "split.tensors.count")),
        ({"total0": 4, "total1": 4, "total2": 4}, ("split.tensors.count", "4", "hold 3")),
        ({"name2": "w0"}, ("'w0'", "00001-of", "00003-of")),
        ({"extra1": [("general.architecture", STRING, "gpt2")]}, ("00002-of", "general.architecture")),
        ({"no0": 7}, ("split.no", "7")),
    ],
)
def test_split_parts_disagree(tmp_path, changes, words):
    paths = split_model(tmp_path, **changes)
    with pytest.raises(GGUFError) as e:
        GGUFFile.open(paths[0])
    assert all(word in str(e.value) for word in words), str(e.value)


@pytest.mark.parametrize("key", ["split.no", "split.count", "split.tensors.count"])
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("kind", [(ARRAY, (I32, [3, 3])), (STRING, "3"), (F32, 3.0), (BOOL, True)])
def test_split_keys_of_another_type(tmp_path, key, part, kind):
    """No part's word is taken for an integer that is none, whichever part it is in."""
    paths = split_model(tmp_path)
    keys = {"split.no": (U16, part), "split.count": (U16, 3), "split.tensors.count": (I32, 3)} | {key: kind}
    tensor = Tensor(f"w{part}", 0, (2,), bytes(8))
    with open(paths[part], "wb") as f:
        f.write(build([(name, *value) for name, value in keys.items()], [tensor]).data)
    with pytest.raises(GGUFError, match=rf"0000{part + 1}-of-00003.gguf: key '{key}'.* is .*integer is wanted"):
        GGUFFile.open(paths[0])


def test_split_damaged_part(tmp_path):
    paths = split_model(tmp_path)
    with open(paths[2], "r+b") as f:
        f.truncate(os.path.getsize(paths[2]) - 30)
    with pytest.raises(GGUFError, match=r"00003-of-00003\.gguf.*'w2'"):
        GGUFFile.open(paths[0])


def test_merged_file_keeps_split_count_zero(write):
    keys = [("split.no", U16, 0), ("split.count", U16, 0), ("split.tensors.count", I32, 1)]
    GGUFFile.open(write(build(keys, [Tensor("w", 0, (1,), bytes(4))]))).close()
