"""Where model files come from: paths, installed packages, the hub, the demo model."""

from __future__ import annotations

import base64
import hashlib
import sys
import types

import pytest

import hybridkern as hk
from hybridkern.runtime import locate as module
from hybridkern.runtime.locate import locate


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Lays an installed distribution of data files onto the import path."""
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(str(site))

    def make(name, contents, requires=()):
        folder = site / name.replace("-", "_")
        folder.mkdir(parents=True)
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        lines = [f"Requires-Dist: {requirement}" for requirement in requires]
        (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *lines]))
        record = []
        for file, data in contents.items():
            (folder / file).write_bytes(data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{folder.name}/{file},sha256={digest},{len(data)}")
        (info / "RECORD").write_text("\n".join(record))
        return folder

    return make


def test_a_path(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(b"x")
    assert locate(path).path == path
    assert locate(str(path)).path == path
    with pytest.raises(hk.GGUFError, match=r"b\.gguf.*no such file"):
        locate(tmp_path / "b.gguf")
    with pytest.raises(hk.GGUFError, match="folder"):
        locate(tmp_path)
    with pytest.raises(hk.GGUFError, match="no such file"):
        locate("")


def test_a_file_in_a_package(install):
    folder = install("one-model", {"m.gguf": b"model", "__init__.py": b""})
    assert locate("package:one-model").path == folder / "m.gguf"
    assert locate("package:one_model").path == folder / "m.gguf"


def test_the_first_part_of_a_split_model(install):
    folder = install("split-model", {"m-00002-of-00002.gguf": b"2", "m-00001-of-00002.gguf": b"1"})
    assert locate("package:split-model").path == folder / "m-00001-of-00002.gguf"


def test_parts_in_required_packages_are_joined_once(install, tmp_path):
    install("big-part2", {"m.gguf.part01": b"world"})
    install("big-part1", {"m.gguf.part00": b"hello "})
    install("big", {"readme.txt": b""}, ["big-part2 (==1.0)", "big-part1==1.0", 'other ; extra == "x"'])
    said = []
    path = locate("package:big", said.append).path
    assert path == tmp_path / "cache" / "hybridkern" / "m.gguf"
    assert path.read_bytes() == b"hello world"
    assert len(said) == 1
    assert locate("package:big", said.append).path == path
    assert len(said) == 1
    assert [entry.name for entry in path.parent.iterdir()] == ["m.gguf"]


def test_a_cache_that_cannot_be_written(install, tmp_path):
    install("big", {"m.gguf.part00": b"hello"})
    (tmp_path / "cache").write_bytes(b"a file where the folder should be")
    with pytest.raises(hk.HybridKernError, match=r"cache/hybridkern: Not a directory: .* XDG_CACHE_HOME"):
        locate("package:big")


def test_a_damaged_part_is_refused(install, tmp_path):
    folder = install("big", {"m.gguf.part00": b"hello ", "m.gguf.part01": b"world"})
    (folder / "m.gguf.part01").write_bytes(b"w0rld")
    with pytest.raises(hk.GGUFError, match="SHA-256"):
        locate("package:big")
    assert list((tmp_path / "cache" / "hybridkern").iterdir()) == []


def test_a_missing_part_is_named(install):
    install("big", {"m.gguf.part00": b"a", "m.gguf.part02": b"c"})
    with pytest.raises(hk.GGUFError, match=r"\[0, 2\]"):
        locate("package:big")


def test_the_digest_of_the_whole(install, monkeypatch):
    install("big", {"m.gguf.part00": b"hello"})
    monkeypatch.setitem(module.KNOWN_SHA256, "m.gguf", "0" * 64)
    with pytest.raises(hk.GGUFError, match="expected 0000"):
        locate("package:big")


def test_packages_that_do_not_help(install):
    install("empty", {"readme.txt": b""})
    with pytest.raises(hk.ArgumentError, match=r"holds no \.gguf"):
        locate("package:empty")
    with pytest.raises(hk.ArgumentError, match="pip install not-installed"):
        locate("package:not-installed")
    with pytest.raises(hk.ArgumentError, match="no such installed"):
        locate("package:")


def test_the_demo_model(install, monkeypatch):
    monkeypatch.setattr(module, "DEMO_PACKAGE", "a-demo-model")
    with pytest.raises(hk.ArgumentError, match="pip install"):
        locate(None)
    folder = install("a-demo-model", {"m.gguf": b"model"})
    found = locate(None)
    assert found.path == folder / "m.gguf"
    assert "Gemma Terms of Use" in found.note


def test_the_hub(monkeypatch, tmp_path):
    asked = []

    def download(repo_id, filename):
        asked.append((repo_id, filename))
        if filename == "absent.gguf":
            raise RuntimeError("404")
        return str(tmp_path / filename)

    client = types.ModuleType("huggingface_hub")
    client.hf_hub_download = download
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    assert locate("hf:me/repo/m.gguf").path == tmp_path / "m.gguf"
    assert locate("hf:me/repo/sub/m-00001-of-00002.gguf").path == tmp_path / "sub" / "m-00001-of-00002.gguf"
    assert asked[1:] == [("me/repo", "sub/m-00001-of-00002.gguf"), ("me/repo", "sub/m-00002-of-00002.gguf")]
    with pytest.raises(hk.GGUFError, match="404"):
        locate("hf:me/repo/absent.gguf")
    with pytest.raises(hk.ArgumentError, match="OWNER/REPO/FILE"):
        locate("hf:me/m.gguf")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(hk.ArgumentError, match="huggingface_hub"):
        locate("hf:me/repo/m.gguf")
