"""Where results may be written."""

from __future__ import annotations

import os

import pytest

from hybridkern.errors import ArgumentError
from hybridkern.gguf.targets import check_target


def test_what_may_be_written(tmp_path):
    for name in ("new.gguf", "old.gguf"):
        (tmp_path / "old.gguf").write_text("old")
        assert check_target(tmp_path / name, [tmp_path / "other.gguf", "-"]) == tmp_path / name
    assert (tmp_path / "old.gguf").read_text() == "old" and not (tmp_path / "new.gguf").exists()


@pytest.mark.parametrize("way", ["itself", "symbolic", "hard", "through a folder"])
def test_never_over_what_is_read(tmp_path, way):
    source = tmp_path / "model.gguf"
    source.write_text("weights")
    target = tmp_path / "target"
    if way == "symbolic":
        target.symlink_to(source)
    elif way == "hard":
        os.link(source, target)
    else:
        (tmp_path / "folder").mkdir()
        target = source if way == "itself" else tmp_path / "folder" / ".." / "model.gguf"
    with pytest.raises(ArgumentError, match="input and output are the same file"):
        check_target(target, [tmp_path / "missing", source])


def test_never_in_the_place_of_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    for path in (tmp_path / "pipe", tmp_path / "link", "/dev/null"):
        with pytest.raises(ArgumentError, match="is no file, but a device, a pipe or a socket"):
            check_target(path)
    for path, said in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "x", "does not exist"),
        (tmp_path / "pipe" / "x", "Not a"),
    ):
        with pytest.raises(ArgumentError, match=f"cannot be written: .*{said}"):
            check_target(path)
