"""Commands in odd surroundings: closed streams, warnings as errors, other locales, too little memory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

GENERATE = [sys.executable, "-m", "hybridkern.cli.generate"]
SECONDS = 60


def run(*words, closed=None, **variables):
    """A command with file `closed` (0 to 2) not open."""
    words = [*GENERATE, *map(str, words)]
    if closed is not None:
        words = ["sh", "-c", f'exec "$@" {closed}>&-', "sh", *words]
    return subprocess.run(words, capture_output=True, timeout=SECONDS, env=os.environ | variables)


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_stream(tiny_path, closed):
    done = run("-m", tiny_path, "-p", "hello", "-n", 3, "-t", 1, closed=closed)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stdout.startswith(b"hello") == (closed != 1)
    assert (b"load" in done.stderr) == (closed != 2)


@pytest.mark.parametrize("words", [("-f", "-"), ("-cnv", "--chat-template", "x")])
def test_reading_from_a_closed_stream_is_the_end_of_it(tiny_path, words):
    done = run("-m", tiny_path, *words, "-n", 3, "-t", 1, closed=0)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr


def test_warnings_as_errors_are_one_line(tiny_path):
    done = run("-m", tiny_path, "-p", "hello", "-n", 3, "-t", 1, "-c", 100000, PYTHONWARNINGS="error::UserWarning")
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert b"is more than the 256 tokens" in done.stderr


def test_no_memory_is_one_line(command, monkeypatch, tiny_path):
    def refuse(*words: object, **named: object) -> None:
        raise MemoryError("no memory for an array")

    monkeypatch.setattr("hybridkern.runtime.loading.load", refuse)
    status, _, err = command("generate", "-m", tiny_path, "-p", "hello")
    assert status == 1
    assert err == "hybridkern: error: no memory for an array\n"


@pytest.mark.parametrize(("flag", "allowed"), [("-t", "256"), ("-tb", "256"), ("-b", "16777216"), ("-ub", "16777216")])
def test_dry_run_knows_the_limits_of_a_real_one(command, tiny_path, flag, allowed):
    for more in ((), ("--dry-run",)):
        status, _, err = command("generate", "-m", tiny_path, "-p", "hello", flag, int(allowed) + 1, *more)
        assert status == 2
        assert allowed in err


def test_an_unknown_token_is_refused_before_anything_is_written(command, tiny_path):
    status, out, err = command("generate", "-m", tiny_path, "-p", "hello", "-l", "99999+1")
    assert (status, out) == (2, "")
    assert "99999 is outside the vocabulary" in err


def test_an_empty_prompt_reports_the_token_that_stands_for_it(command, tmp_path):
    import json

    from tiny import write_tiny

    keys = {"tokenizer.ggml.add_bos_token": False}
    path = write_tiny(tmp_path / "plain.gguf", "llama", metadata=keys).path
    status, out, _ = command("generate", "-m", path, "-p", "", "-n", 2, "--json")
    assert status == 0
    assert json.loads(out)["prompt_ids"] == [1]
