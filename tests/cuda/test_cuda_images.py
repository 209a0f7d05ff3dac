"""Which images a GPU gets: the build's where they fit, else what NVRTC makes, once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hybridkern.errors import KernelError
from hybridkern.kernels.cuda import images, nvrtc

pytestmark = pytest.mark.on_host
SOURCES = Path(__file__).parents[2] / "csrc" / "cuda"


@pytest.mark.parametrize(
    ("built_for", "capability", "runs"),
    [
        (["sm_75"], (7, 5), True),
        (["sm_75"], (7, 0), False),
        (["sm_80"], (8, 6), True),
        (["sm_86"], (8, 0), False),
        (["sm_80"], (9, 0), False),
        (["sm_90a"], (9, 0), True),
        (["sm_90a"], (9, 1), False),
        (["sm_100"], (10, 3), True),
        (["sm_75", "sm_90a"], (12, 0), False),
        (["sm_75", "compute_80"], (12, 0), True),
        (["compute_80"], (7, 5), False),
        ([], (9, 0), False),
    ],
)
def test_what_runs_where(built_for: list[str], capability: tuple[int, int], runs: bool) -> None:
    assert images.fits(built_for, capability) is runs


def built(folder: Path, monkeypatch: pytest.MonkeyPatch, manifest: Any) -> None:
    (folder / "rows.fatbin").write_bytes(b"rows")
    if manifest is not None:
        (folder / "images.json").write_text(manifest if isinstance(manifest, str) else json.dumps(manifest))
    monkeypatch.setenv("HYBRIDKERN_CUDA_IMAGES", str(folder))


def test_images_that_fit_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built(tmp_path, monkeypatch, {"compiler": "13.0", "code": ["sm_90a"]})
    assert images.load_images((9, 0), (13, 0)) == {"rows": b"rows"}


def test_images_made_by_hand_are_taken_at_their_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built(tmp_path, monkeypatch, None)
    assert images.load_images((7, 5), (12, 0)) == {"rows": b"rows"}


@pytest.mark.parametrize(
    ("manifest", "driver", "why"),
    [
        ({"compiler": "13.0", "code": ["sm_75"]}, (13, 0), "are for sm_75"),
        ({"compiler": "13.0", "code": ["sm_90a"]}, (12, 8), "made by CUDA 13.0, and the driver serves 12"),
        ("{", (13, 0), "images.json of this build cannot be read"),
        ({"compiler": "new", "code": ["sm_90a"]}, (13, 0), "images.json of this build cannot be read"),
        ({"compiler": "13.0", "code": ["90a"]}, (13, 0), "images.json of this build cannot be read"),
    ],
)
def test_why_the_build_will_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest: Any, driver: tuple[int, int], why: str
) -> None:
    built(tmp_path, monkeypatch, manifest)
    monkeypatch.setattr(images, "find_compiler", no_compiler)
    with pytest.raises(KernelError, match=why) as error:
        images.load_images((9, 0), driver)
    assert "no NVRTC here" in str(error.value) and "HYBRIDKERN_CUDA_ARCHITECTURES=90" in str(error.value)


def no_compiler(newest: int, architecture: int) -> Compiler:
    raise KernelError("no NVRTC here")


class Compiler:
    """Counts what it is asked for."""

    version = 13, 1

    def __init__(self) -> None:
        self.asked: list[str] = []

    def compile(self, source: Path, options: Sequence[str]) -> bytes:
        self.asked.append(source.name)
        assert "--gpu-architecture=sm_86" in options
        return b"image of " + source.read_bytes()


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "csrc" / "cuda"
    folder.mkdir(parents=True)
    for name in ("a.cu", "b.cu", "common.cuh"):
        (folder / name).write_text(name)
    return folder


def compiled(sources: Path, folder: Path, said: list[str] | None = None) -> tuple[dict[str, bytes], list[str]]:
    compiler = Compiler()
    files = sorted(sources.glob("*.cu"))
    say = [].append if said is None else said.append
    made = images.compile_all((8, 6), compiler, say, files, folder)  # type: ignore[arg-type]
    return made, sorted(compiler.asked)


def test_compiled_images_are_kept(sources: Path, tmp_path: Path) -> None:
    said: list[str] = []
    want = {"a": b"image of a.cu", "b": b"image of b.cu"}
    assert compiled(sources, tmp_path / "cache", said) == (want, ["a.cu", "b.cu"])
    assert "sm_86" in said[0] and "NVRTC 13.1" in said[0] and len(said) == 3
    assert compiled(sources, tmp_path / "cache", said) == (want, [])
    assert len(said) == 3
    (sources / "a.cu").write_text("new")
    assert compiled(sources, tmp_path / "cache")[1] == ["a.cu"]
    (sources / "common.cuh").write_text("new")
    assert compiled(sources, tmp_path / "cache")[1] == ["a.cu", "b.cu"]
    assert not list((tmp_path / "cache").glob("*.part"))


@pytest.mark.parametrize("damage", [b"", b"x", b"y" * 100])
def test_a_damaged_cache_is_compiled_again(sources: Path, tmp_path: Path, damage: bytes) -> None:
    want = compiled(sources, tmp_path / "cache")[0]
    for file in (tmp_path / "cache").glob("a-*"):
        file.write_bytes(damage)
    assert compiled(sources, tmp_path / "cache") == (want, ["a.cu"])
    assert compiled(sources, tmp_path / "cache") == (want, [])


def test_without_a_cache_it_works_and_says_so(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    made, asked = compiled(sources, tmp_path / "file" / "cache", said)
    assert len(made) == 2 and len(asked) == 2
    assert "could not be kept" in said[-1]


def test_no_sources_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="install hybridkern again"):
        compiled(tmp_path, tmp_path)


def test_a_library_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libnvrtc.so").write_text("no library")
    monkeypatch.setenv("HYBRIDKERN_NVRTC", str(tmp_path / "libnvrtc.so"))
    with pytest.raises(KernelError, match=r"libnvrtc\.so.*pip install nvidia-cuda-nvrtc"):
        nvrtc.find_compiler(13)
    monkeypatch.setenv("HYBRIDKERN_NVRTC", str(tmp_path / "nowhere.so"))
    with pytest.raises(KernelError, match="there is no such file"):
        nvrtc.find_compiler(13)


@pytest.fixture(scope="module")
def compiler() -> nvrtc.Compiler:
    try:
        return nvrtc.find_compiler(13)
    except KernelError as error:
        pytest.skip(str(error))


def test_the_driver_limits_the_version(compiler: nvrtc.Compiler) -> None:
    with pytest.raises(KernelError, match="too new for the driver"):
        nvrtc.find_compiler(compiler.version[0] - 1)
    with pytest.raises(KernelError, match="does not know sm_35"):
        nvrtc.find_compiler(compiler.version[0], 35)


@pytest.mark.parametrize("capability", [(7, 5), (9, 0)])
def test_nvrtc_compiles_the_sources(compiler: nvrtc.Compiler, tmp_path: Path, capability: tuple[int, int]) -> None:
    """Two of them, which are quickly compiled; what the others must not do is the next test."""
    files = [SOURCES / "argmax.cu", SOURCES / "topk.cu"]
    made = images.compile_all(capability, compiler, print, files, tmp_path)
    for name, kernel in (("argmax", b"hk_argmax"), ("topk", b"hk_topk")):
        assert made[name][:4] == b"\x7fELF" and kernel in made[name]


def test_no_source_needs_a_header_of_the_toolkit() -> None:
    for file in [*SOURCES.glob("*.cu*"), *SOURCES.glob("*.h")]:
        assert "#include <" not in file.read_text(), f"{file.name}: NVRTC has no system headers"


def test_an_error_shows_the_compilers_words(compiler: nvrtc.Compiler, tmp_path: Path) -> None:
    shutil.copy(SOURCES / "argmax.cu", tmp_path)
    with pytest.raises(KernelError, match=r"argmax\.cu cannot be compiled[\s\S]*hk_\w+\.cuh"):
        compiler.compile(tmp_path / "argmax.cu", ["--gpu-architecture=sm_75"])
