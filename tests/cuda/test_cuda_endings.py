"""A process that has used the GPU ends cleanly, however it ends."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tiny import write_tiny

ENDINGS = ("open", "closed", "thread", "daemon", "generating", "exception", "fork", "later")
PROGRAM = Path(__file__).with_name("endings.py")


def end(how: str, path: Path, **environment: Any) -> None:
    """Run it; the status must be right, and nothing but a traceback that was asked for may be written."""
    done = subprocess.run(
        [sys.executable, PROGRAM, how, path], capture_output=True, text=True, timeout=120, check=False, **environment
    )
    assert "done" in done.stdout, done.stderr
    assert done.returncode == (1 if how == "exception" else 0), done.stderr
    if how != "exception":
        assert not done.stderr.strip(), done.stderr


@pytest.mark.parametrize("how", [*ENDINGS, "torch"])
def test_the_process_ends_cleanly(device: Any, tmp_path: Path, how: str) -> None:
    if how == "torch" and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    end(how, write_tiny(tmp_path / "tiny.gguf", "llama").path)
