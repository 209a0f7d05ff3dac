"""The fuzz targets of the reader and of the text layer, for a few seconds; fuzz/README.md has the long way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.places import placed
from fuzz.run import corpus_of
from fuzz.seeds import reader_seeds, text_seeds
from fuzz.targets import Finding, expected

from hybridkern.errors import GGUFError, HybridKernError
from hybridkern.gguf import GGUFFile

ROOT = Path(__file__).resolve().parents[2]


def run(tmp_path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fuzz.run", *args, "--engine=plain", f"--keep={tmp_path}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(("target", "n"), [("reader", 2000), ("text", 300)])
def test_nothing_is_found(tmp_path, target, n):
    done = run(tmp_path, target, f"-n{n}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{n} executions" in done.stdout


@pytest.mark.parametrize(
    ("fault", "how"), [("while True: pass", "SIGPROF"), ("bytearray(3 << 30)", "status 1"), ("os.abort()", "SIGABRT")]
)
def test_faults_are_found(tmp_path, monkeypatch, fault, how):
    """A fuzzer that finds nothing proves nothing: faults are put in front of the target."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if any(arg.startswith('--worker') for arg in sys.orig_argv):\n"
        "    import hybridkern.gguf.part as part\n"
        "    right = part.Part.open\n"
        "    def wrong(path, *rest):\n"
        "        if open(path, 'rb').read(4) == b'PK\\3\\4':\n"
        f"            {fault}\n"
        "        return right(path, *rest)\n"
        "    part.Part.open = wrong\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run(tmp_path, "reader", "-n30")
    assert done.returncode == 1 and how in done.stdout, done.stdout + done.stderr
    kept = next(tmp_path.glob("reader-1-*"))
    assert kept.read_bytes().startswith(b"PK")
    if how == "SIGABRT":
        assert run(tmp_path, "reader", f"--replay={kept}").returncode == 1


def test_messages_that_cannot_be_used_are_found():
    for message in ("x" * 30_000, "\udcff", "not the path"):
        with pytest.raises(Finding), expected("path.gguf"):
            raise GGUFError(message)
    with expected("path.gguf"):
        raise GGUFError("path.gguf: what is wrong")
    with pytest.raises(KeyError), expected():
        raise KeyError


def test_what_stands_in_a_file_s_place(tmp_path):
    """Every kind of odd place comes up, is refused for what it is, and is gone afterwards."""
    raw, results = dict(reader_seeds())["split"], set()
    first = raw[9 : 9 + int.from_bytes(raw[5:9], "little")].replace(b"split.count", b"other.count")
    for dice in range(1, 500):
        with placed(str(tmp_path), first, dice) as (path,):
            try:
                GGUFFile.open(path, mmap=False).close()
                results.add("opened")
            except HybridKernError as e:
                results.add(str(e).split(": ", 1)[1])
    opening = ("it is a socket", "No such file", "Too many levels", "File name too long", "embedded null")
    reading = ("is a directory", "is a pipe", "is a device", "the file at byte 0: is empty", "the magic at byte 4: the")
    for reason in ("opened", *(f"cannot be opened: {why}" for why in opening), *reading):
        assert any(result.startswith(reason) for result in results), (reason, results)
    assert not any(tmp_path.iterdir())


def test_the_corpus_is_what_its_script_writes():
    assert sorted(corpus_of("reader")) == sorted(data for _, data in reader_seeds())
    assert sorted(corpus_of("text")) == sorted(data for _, data in text_seeds())
