"""Commands run in the test's own process, and a model for them. For conftest files."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
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


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that can be run, in F32."""
    from tiny import write_tiny

    return str(write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", "llama").path)
