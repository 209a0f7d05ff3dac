"""Commands as processes of their own: pipes, signals, streaming."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import real_models

GENERATE = [sys.executable, "-m", "hybridkern.cli.generate"]
# Importing NumPy and reading a vocabulary on a busy machine.
START_SECONDS = 60


@pytest.fixture(scope="module")
def long_model(tmp_path_factory):
    """A model whose context is long and whose steps are slow enough to be interrupted."""
    from tiny import write_tiny

    path = tmp_path_factory.mktemp("models") / "long.gguf"
    return str(write_tiny(path, "llama", n_layer=4, n_embd=256, n_ff=1024, context=1 << 17).path)


def start(*words, **options):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*GENERATE, *map(str, words)], **streams, **options)


def test_text_streams_through_a_pipe(long_model):
    process = start("-m", long_model, "-p", "hello", "-n", "2000", "--ignore-eos", "-s", "1", "-t", "1")
    begin = os.read(process.stdout.fileno(), 5)
    early = process.poll() is None
    rest, err = process.communicate(timeout=START_SECONDS)
    assert early, "all text came at once"
    assert begin + rest[:0] == b"hello"
    assert process.returncode == 0
    assert b"decode 1999 tokens" in err


def test_a_reader_that_goes_away(long_model):
    process = start("-m", long_model, "-p", "hello", "-n", "-1", "-c", "0", "--ignore-eos", "-t", "1")
    os.read(process.stdout.fileno(), 5)
    process.stdout.close()
    assert process.wait(START_SECONDS) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize("during", ["prompt", "decode"])
def test_interrupt(long_model, tmp_path, during):
    if during == "prompt":
        text = tmp_path / "prompt.txt"
        text.write_text("hello world and then " * 6000)
        process = start("-m", long_model, "-f", text, "-c", "0", "--no-display-prompt", "--verbose", "-t", "1")
        while b"tape" not in process.stderr.readline():  # the description comes before the prompt
            pass
        time.sleep(0.5)
    else:
        process = start("-m", long_model, "-p", "hello", "-n", "-1", "-c", "0", "--ignore-eos", "-t", "1")
        os.read(process.stdout.fileno(), 5)
        os.read(process.stdout.fileno(), 1)
    assert process.poll() is None
    begin = time.perf_counter()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=START_SECONDS)
    took = time.perf_counter() - begin
    assert process.returncode == 130
    assert err.strip().endswith(b"interrupted")
    assert b"Traceback" not in err
    assert took < 0.2 + 0.8 * (os.getloadavg()[0] > os.cpu_count()), f"{took:.2f} s"


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "hybridkern"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: hybridkern ")


def test_json(long_model):
    process = start("-m", long_model, "-p", "hello", "-n", "3", "--ignore-eos", "--json", "--temp", "0", "-t", "1")
    out, _ = process.communicate(timeout=START_SECONDS)
    record = json.loads(out)
    assert record["prompt"] == "hello"
    assert len(record["token_ids"]) == len(record["logprobs"]) == 3
    assert record["finish_reason"] == "length"
    assert set(record["seconds"]) == {"load", "prompt", "decode"}


def test_a_conversation_through_pipes(long_model):
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    words = ["-m", long_model, "-cnv", "--chat-template", template, "-n", "5", "--ignore-eos", "--temp", "0", "-t", "1"]
    process = start(*words, stdin=subprocess.PIPE)
    out, err = process.communicate(b"hello\n\nworld\n", timeout=START_SECONDS)
    assert process.returncode == 0, err
    assert out.count(b"\n") >= 2
    assert b"decode 8 tokens" in err
    single = start(*words, "-st", "-p", "hello", stdin=subprocess.DEVNULL)
    out, _ = single.communicate(timeout=START_SECONDS)
    assert single.returncode == 0
    without = start("-m", long_model, "-cnv", "-st", "-p", "hello", "-t", "1", stdin=subprocess.DEVNULL)
    _, err = without.communicate(timeout=START_SECONDS)
    assert without.returncode == 1
    assert b"no chat template" in err


@pytest.mark.real_model
def test_the_demo_model():
    if real_models.gemma3_270m() is None:
        pytest.skip("gemma3-270m is not installed")
    done = subprocess.run(
        [*GENERATE, "-p", "The capital of France is", "-n", "3", "--temp", "0"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stdout.startswith("The capital of France is the ")
    assert "Gemma Terms of Use" in done.stderr
