"""What the tests of the conversion share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "model")]


@pytest.fixture
def command(capsys):
    """Runs `hybridkern WORDS`; gives (exit status, standard output, standard error)."""
    from hybridkern.cli.main import main

    def run(*words: object) -> tuple[int, str, str]:
        try:
            status = main([str(word) for word in words])
        except SystemExit as end:
            status = int(end.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return run
