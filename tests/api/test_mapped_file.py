"""A mapped model file that changes while it is in use: an error, not SIGBUS and not nonsense."""

from __future__ import annotations

import os
import shutil

import pytest

import hybridkern as hk


def test_a_file_that_is_cut_short(tiny_llama, tmp_path):
    path = tmp_path / "cut.gguf"
    shutil.copy(tiny_llama, path)
    with hk.load(path, threads=1, n_ctx=32) as model:
        pieces = model.generate("hello", temperature=0, ignore_eos=True)
        next(pieces)
        os.truncate(path, 4096)
        with pytest.raises(hk.GGUFError, match=r"cut\.gguf"):
            list(pieces)
        with pytest.raises(hk.GGUFError, match=r"cut\.gguf"):
            model.logits([1, 2, 3])


def test_a_file_that_is_cut_short_while_it_is_packed(tiny_llama, tmp_path):
    path = tmp_path / "cut.gguf"
    shutil.copy(tiny_llama, path)
    with pytest.raises(hk.GGUFError, match=r"cut\.gguf"):
        hk.load(path, threads=1, n_ctx=32, progress=lambda *_: os.truncate(path, 4096))


def test_without_mmap_it_does_not_matter(tiny_llama, tmp_path):
    path = tmp_path / "read.gguf"
    shutil.copy(tiny_llama, path)
    with hk.load(path, threads=1, n_ctx=32, mmap=False) as model:
        before = model.logits([1, 2, 3])
        os.truncate(path, 4096)
        assert (model.logits([1, 2, 3]) == before).all()
