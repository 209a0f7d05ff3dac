"""`hybridkern setup-cuda`: which commands it runs, and what it says where it cannot."""

from __future__ import annotations

import shlex
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from hybridkern.cli import setup_cuda
from hybridkern.cli.main import main


@pytest.fixture(autouse=True)
def without_pycuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_cuda.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(setup_cuda.shutil, "which", lambda name: f"/usr/bin/{name}")


@pytest.mark.parametrize(
    ("major", "headers", "compiler"),
    [(13, "nvidia-cuda-runtime>=13,<14", "nvidia-cuda-nvrtc>=13,<14"),
     (12, "nvidia-cuda-runtime-cu12>=12,<13", "nvidia-cuda-nvrtc-cu12>=12,<13")],
)  # fmt: skip
def test_the_commands(capsys: pytest.CaptureFixture[str], major: int, headers: str, compiler: str) -> None:
    assert main(["setup-cuda", "--cuda", str(major), "--dry-run"]) == 0
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 4
    folder = lines[0][lines[0].index("--target") + 1]
    assert headers in lines[0] and lines[1][0] == "/usr/bin/cc" and "-Wl,-soname,libcuda.so.1" in lines[1]
    assert lines[2][0].startswith(f"CPATH={folder}/nvidia/") and "LDFLAGS=-Wl,--no-as-needed" in lines[2]
    assert "pycuda" in lines[2] and "--global-option=--conf:CUDA_ENABLE_CURAND=False" in lines[2]
    assert lines[3][-1] == compiler


def test_it_stops_at_the_first_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[Any] = []

    def run(words: Any, env: dict[str, str], check: bool) -> SimpleNamespace:
        ran.append((words, env))
        return SimpleNamespace(returncode=len(ran) - 1)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("CPATH", "/mine")
    assert main(["setup-cuda", "--cuda", "13"]) == 1
    assert len(ran) == 2
    assert "failed with status 1" in capsys.readouterr().err


def test_the_users_own_paths_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def run(words: Any, env: dict[str, str], check: bool) -> SimpleNamespace:
        seen.update(env)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("CPATH", "/mine")
    setup_cuda._carry_out(["pip"], {"CPATH": "/headers", "LIBRARY_PATH": "/stub"}, False)
    assert seen["CPATH"] == "/headers:/mine" and seen["LIBRARY_PATH"].split(":")[0] == "/stub"


def test_no_compiler_and_no_driver_are_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hybridkern.errors import KernelError
    from hybridkern.kernels.cuda import driver

    def none() -> tuple[int, int]:
        raise KernelError("no NVIDIA driver")

    monkeypatch.setattr(driver, "driver_version", none)
    assert main(["setup-cuda"]) == 2
    assert "no NVIDIA driver" in (said := capsys.readouterr().err) and "--cuda 13" in said
    monkeypatch.setattr(driver, "driver_version", lambda: (11, 8))
    assert main(["setup-cuda"]) == 2
    assert "CUDA 11.8" in capsys.readouterr().err
    monkeypatch.setattr(setup_cuda.shutil, "which", lambda name: None)
    assert main(["setup-cuda", "--cuda", "13"]) == 2
    assert "no C++ compiler" in capsys.readouterr().err
