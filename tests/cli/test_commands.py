"""The other commands: tokenize, info, doctor."""

from __future__ import annotations

import json


def test_tokenize(command, tiny_path):
    status, out, _ = command("tokenize", "-m", tiny_path, "-p", "hello <s>")
    assert status == 0
    rows = [line.split(maxsplit=1) for line in out.splitlines()]
    assert rows[0] == ["1", "'<s>'"]
    assert rows[-1] == ["1", "'<s>'"]
    status, out, _ = command("tokenize", "-m", tiny_path, "-p", "hello", "--ids", "--no-bos")
    ids = json.loads(out)
    status, out, _ = command("tokenize", "-m", tiny_path, "-p", "hello", "--json", "--no-bos")
    assert [row["id"] for row in json.loads(out)] == ids
    assert command("tokenize", "-m", tiny_path)[0] == 2


def test_info(command, tiny_path):
    status, out, _ = command("info", "-m", tiny_path, "--tensors", "--validate-quants")
    assert status == 0
    for text in ("general.architecture", "'llama'", "token_embd.weight", "F32"):
        assert text in out
    status, out, _ = command("describe", "-m", tiny_path, "--json")
    record = json.loads(out)
    assert record["metadata"]["llama.block_count"] == 2
    assert record["types"][0]["type"] == "F32"
    assert sum(row["bytes"] for row in record["tensors"]) == record["types"][0]["bytes"]


def test_doctor(command):
    status, out, _ = command("doctor", "--kernels")
    assert status == 0
    assert "kernel set scalar" in out
    assert "Q4_K" in out


def test_doctor_says_when_the_system_refuses_tiles(command, monkeypatch):
    from hybridkern.kernels import _cpu

    amx = {name: needs for name, needs, _ in _cpu.kernel_sets()}["amx"]
    others = {needs for name, needs, _ in _cpu.kernel_sets() if not name.startswith("amx")}
    monkeypatch.setattr(_cpu, "features", lambda: max(others))
    monkeypatch.setattr(_cpu, "amx_denied", lambda: True)
    assert amx & ~max(others)
    status, out, _ = command("doctor")
    assert status == 0
    line = " ".join(out[out.index("kernel set amx") :].split("kernel set")[1].replace("│", " ").split())
    assert "does not let this process use it" in line
    monkeypatch.setenv("HYBRIDKERN_CPU", "amx")
    status, _, err = command("doctor")
    assert status == 1
    assert "does not let this process use it" in err


def test_an_unknown_kernel_set(command, tiny_path, monkeypatch):
    monkeypatch.setenv("HYBRIDKERN_CPU", "sse9")
    status, _, err = command("generate", "-m", tiny_path, "-p", "x", "-n", "1")
    assert status == 1
    assert "sse9" in err
    assert "scalar" in err
