"""The other commands: tokenize, bench, info, doctor."""

from __future__ import annotations

import json

import pytest


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
    others = {needs for name, needs, _ in _cpu.kernel_sets() if name != "amx"}
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


@pytest.fixture
def quick_peaks(monkeypatch):
    from hybridkern.kernels import rates

    monkeypatch.setattr(rates, "READ_BYTES", 1 << 20)
    monkeypatch.setattr(rates, "read_rate", lambda threads: 1e10)
    monkeypatch.setattr(rates, "INT8_SECONDS", 0.001)


def test_bench(command, tiny_path, quick_peaks):
    status, out, _ = command("bench", "-m", tiny_path, "-p", "16", "-n", "4", "-r", "2", "-t", "1", "--json")
    assert status == 0
    record = json.loads(out)
    assert list(record) == ["model", "host", "commit", "kernel_set", "threads", "peaks", "results"]
    assert list(record["peaks"]) == ["read_gb_per_s", "int8_gmac_per_s"]
    assert [row["test"] for row in record["results"]] == ["pp16", "tg4"]
    keys = ["test", "tokens_per_s", "min", "max", "gmac_per_s", "fraction_of_int8_peak", "gb_per_s", "fraction_of_read"]
    for row in record["results"]:
        assert list(row) == keys
        assert row["min"] <= row["tokens_per_s"] <= row["max"]
    status, out, _ = command("bench", "-m", tiny_path, "-p", "16", "-n", "0", "-r", "1", "-t", "1")
    assert status == 0
    assert "pp16" in out
    assert command("bench", "-m", tiny_path, "-p", "0", "-n", "0")[0] == 2
