"""Arguments: what is wrong ends with exit status 2 and one line that names it; what has no effect says so."""

from __future__ import annotations

import pytest

from hybridkern.cli.known_flags import TABLE
from hybridkern.cli.values import unescape


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["-b", "0"], "-b/--batch-size"),
        (["-b", "-1"], "-b/--batch-size"),
        (["-ub", "0"], "-ub/--ubatch-size"),
        (["-c", "1"], "n_ctx"),
        (["-c", "-5"], "-c/--ctx-size"),
        (["-c", "many"], "'many' is not an integer"),
        (["-t", "0"], "-t 0"),
        (["-t", "-3"], "-t/--threads"),
        (["-tb", "0"], "-tb 0"),
        (["-n", "-7"], "-n/--n-predict"),
        (["--temp", "-1"], "--temp"),
        (["--temp", "nan"], "--temp"),
        (["--top-k", "-1"], "--top-k"),
        (["--top-p", "1.5"], "--top-p"),
        (["--min-p", "-0.1"], "--min-p"),
        (["--typical", "2"], "--typical"),
        (["--repeat-penalty", "0"], "repeat_penalty"),
        (["--repeat-last-n", "-2"], "--repeat-last-n"),
        (["--mirostat", "3"], "--mirostat"),
        (["--logit-bias", "x"], "'x' is not TOKEN_ID+BIAS"),
        (["--logit-bias", "100000+1"], "logit_bias"),
        (["-s", "-2"], "--seed"),
        (["-ctk", "q5_0"], "-ctk/--cache-type-k"),
        (["-ctk", "f16", "-ctv", "q8_0"], "-ctk f16 and -ctv q8_0"),
        (["--sha256", "abc"], "digest"),
        (["--stop", ""], "stop"),
        (["--stop", "a\udcff"], "not valid UTF-8 at character 1"),
        (["-cnv", "-sys", "\udcff"], "not valid UTF-8"),
        (["-cnv", "--chat-template", "\udcff"], "not valid UTF-8"),
        (["-sys", "be brief"], "--system-prompt"),
        (["-f", "/nowhere/prompt"], "/nowhere/prompt"),
        (["--fit", "maybe"], "not on or off"),
        (["--gpu-memory", "0"], "allowed: 1 or more"),
        (["-sm", "row"], "invalid choice"),
        (["--n-cpu-ffn", "-1"], "allowed: 0 or more"),
        (["--place", "blk.0"], "'blk.0' is not PATTERN=DEVICE"),
        (["--place", "blk.99=cpu"], "the blocks of this model are 0 to"),
        (["--place", "wheel.1=cpu"], "names no part of a model"),
        (["-ot", "blk.(=CPU"], "no regular expression"),
        (["-ot", "exps=CPU"], "matches no matrix of this model"),
        (["-ot", "ffn=TPU7"], "'TPU7' is no device"),
        (["-ngl", "many"], "all, auto, or a number"),
        (["-ngl", "-1"], "all, auto, or a number"),
        (["--device", "CUDA0,CUDA1"], "one GPU such as CUDA0"),
        (["--device", "none", "-ngl", "all"], "--device none: give one of them"),
        (["-ot", "=CPU"], "is not PATTERN=DEVICE"),
        (["-ot", "nonsense"], "PATTERN=DEVICE"),
        (["--lora", "a.gguf"], "adapters"),
        (["--no-such-flag"], "--no-such-flag"),
        (["--temper", "1"], "--temper"),
        (["-no-such"], "unrecognized arguments: -no-such"),
        (["-seq", "1"], "unrecognized arguments: -seq"),
    ],
)
def test_what_cannot_be_used_ends_with_status_2(command, tiny_path, words, named):
    text = [] if words[0] == "-f" else ["-p", "hello"]
    status, out, err = command("generate", "-m", tiny_path, *text, "-n", "1", *words)
    assert status == 2
    assert named in err
    assert err.splitlines()[-1].startswith("hybridkern: error: ")
    assert out in ("", "hello")


@pytest.mark.parametrize("name", ["generate", "tokenize"])
def test_a_prompt_that_is_no_text(command, tiny_path, tmp_path, monkeypatch, name):
    """Not valid UTF-8: in -p it reaches Python as surrogates, in a file as bytes."""
    status, out, err = command(name, "-m", tiny_path, "-p", "ab\udcff")
    assert (status, out) == (2, "")
    assert "-p/--prompt: 'ab\\udcff' is not valid UTF-8 at character 2" in err
    path = tmp_path / "prompt"
    path.write_bytes(b"ab\xff")
    for errors in ("strict", "surrogateescape"):  # as a UTF-8 locale and as the C locale open standard input
        with open(path, encoding="utf-8", errors=errors) as stream:
            monkeypatch.setattr("sys.stdin", stream)
            status, out, err = command(name, "-m", tiny_path, "-f", "-")
        assert (status, out) == (2, "")
        assert "-f -: " in err
    status, out, err = command(name, "-m", tiny_path, "-f", path)
    assert (status, out) == (2, "")
    assert f"-f {path}: " in err


def test_no_prompt_at_all(command, tiny_path):
    status, _, err = command("generate", "-m", tiny_path)
    assert status == 2
    assert "give a prompt" in err


def test_unknown_commands_and_help(command):
    assert command("frobnicate")[0] == 2
    status, out, _ = command()
    assert status == 0
    assert "generate" in out
    status, out, _ = command("generate", "--help")
    assert status == 0
    assert "--n-predict" in out


@pytest.mark.parametrize("known", TABLE, ids=lambda known: known.names[-1])
def test_every_known_flag_is_answered(command, tiny_path, known):
    """Never in silence: a note before the command runs, or a refusal."""
    for name in known.names:
        words = [name] + ["7"] * known.values
        status, _, err = command("generate", "-m", tiny_path, "-p", "x", "--dry-run", *words)
        assert status == (0 if known.fine else 2)
        assert known.answer in err
    for value in known.harmless:
        status, _, err = command("generate", "-m", tiny_path, "-p", "x", "--dry-run", known.names[0], value)
        assert status == 0
        assert f"{known.names[0]} {value}: " in err


def test_flash_attention_with_and_without_a_value(command, tiny_path):
    for words in (["-fa"], ["-fa", "-n", "1"], ["-fa", "off"]):
        status, _, err = command("generate", "-m", tiny_path, "-p", "x", "--dry-run", *words)
        assert status == 0
        assert "-fa: attention is always fused" in err


def test_a_number_may_follow_its_flag_at_once(command, tiny_path):
    assert command("generate", "-m", tiny_path, "-p", "x", "-n1", "-c64", "--temp", "0")[0] == 0


def test_a_missing_file(command):
    status, _, err = command("generate", "-m", "/nowhere/model.gguf", "-p", "x")
    assert status == 1
    assert err.strip() == "hybridkern: error: '/nowhere/model.gguf': no such file"


@pytest.mark.parametrize("name", ["generate", "info", "tokenize", "bench"])
def test_a_file_that_is_no_model(command, tmp_path, name):
    path = tmp_path / "page.gguf"
    path.write_bytes(b"<html>not found</html>")
    words = [] if name in ("info", "bench") else ["-p", "x"]
    status, _, err = command(name, "-m", path, *words)
    assert status == 1
    assert "HTML" in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" in command(name, "-m", path, *words, "--verbose")[2]


@pytest.mark.parametrize("size", [0, 3, 24, 500, 9000, 60_000, 400_000])
def test_a_file_that_is_cut_short(command, tiny_path, tmp_path, size):
    path = tmp_path / "cut.gguf"
    with open(tiny_path, "rb") as whole:
        path.write_bytes(whole.read(size))
    status, out, err = command("generate", "-m", path, "-p", "x", "-n", "1")
    assert status == 1
    assert out == ""
    assert "cut.gguf" in err
    assert len(err.strip().splitlines()) == 1


def test_a_wrong_digest(command, tiny_path):
    status, _, err = command("generate", "-m", tiny_path, "-p", "x", "-n", "1", "--sha256", "0" * 64)
    assert status == 1
    assert "SHA-256" in err or "sha256" in err


def test_dry_run_shows_sizes(command, tiny_path):
    status, out, _ = command("generate", "-m", tiny_path, "--dry-run", "-c", "128", "-ctk", "q8_0", "-ctv", "q8_0")
    assert status == 0
    assert "KV cache" in out
    assert "128 tokens, q8_0" in out


def test_escapes():
    assert unescape(r"a\nb\tc\\d\x41\q") == "a\nb\tc\\dA\\q"
    assert unescape("\\") == "\\"
    assert unescape(r"\x4") == r"\x4"
