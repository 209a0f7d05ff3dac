"""hybridkern bench: lists of values, formats, pictures, peers."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from hybridkern.cli.values import MOST_VALUES, integer, layers, one_of, several
from hybridkern.measure.peers import PeerError, Worker
from hybridkern.measure.rows import COLUMNS, in_turn
from hybridkern.measure.timing import Workload, workloads

QUICK = ("-r", "1", "-t", "1", "-p", "8", "-n", "2")
FAKE = Path(__file__).with_name("fake_peer")


@pytest.fixture(autouse=True)
def quick_peaks(monkeypatch):
    from hybridkern.kernels import rates

    monkeypatch.setattr(rates, "read_rate", lambda threads: 1e10)
    monkeypatch.setattr(rates, "int8_rate", lambda threads: 1e11 * threads)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("5", [5]), ("1,2,4", [1, 2, 4]), ("1-3", [1, 2, 3]), ("10-30+10", [10, 20, 30]), ("10-35+10", [10, 20, 30]),
        ("16-100*2", [16, 32, 64]), ("0,8-10,64-128*2", [0, 8, 9, 10, 64, 128]), ("7-7", [7]), ("-1,2", [-1, 2]),
    ],
)  # fmt: skip
def test_lists_of_numbers(text, values):
    assert several(integer(-1))(text) == values


@pytest.mark.parametrize("text", ["", "1,", "3-1", "1-8*1", "0-8*2", "1-8+0", "1-8/2", "x", "1-999999999", "-5"])
def test_what_is_no_list(text):
    with pytest.raises(ArgumentTypeError):
        several(integer(-1))(text)


def test_lists_of_words_and_their_length():
    assert several(layers)("auto,0-2,all") == ["auto", 0, 1, 2, "all"]
    assert several(one_of("f16", "q8_0"), spans=False)("f16,q8_0") == ["f16", "q8_0"]
    assert len(several(integer(0))(f"1-{MOST_VALUES}")) == MOST_VALUES
    with pytest.raises(ArgumentTypeError, match="more than 256 values"):
        several(integer(0))(f"0-{MOST_VALUES}")


def test_workloads_and_their_names():
    made = workloads([512, 0], [0, 64], [(128, 16)], [0, 1024])
    assert [w.name for w in made] == [
        "pp512", "tg64", "pp128+tg16", "pp512 @ d1024", "tg64 @ d1024", "pp128+tg16 @ d1024",
    ]  # fmt: skip
    assert [w.tokens for w in made[:3]] == [512, 64, 144] and made[5].context == 1024 + 128 + 16 + 1
    assert Workload(3, 2, 4).ids(range(5)) == ([0, 1, 2, 3], [4, 0, 1], [4, 0])
    assert workloads([4, 4], [0], [], [0]) == [Workload(4, 0)]


def test_runs_take_turns():
    order = []
    runs = [lambda i=i: order.append(i) or float(len(order)) for i in range(3)]
    times = in_turn(runs, 3)
    assert order == [2, 0, 1, 0, 1, 2, 1, 2, 0, 2, 0, 1]
    assert times == [[4.0, 9.0, 11.0], [5.0, 7.0, 12.0], [6.0, 8.0, 10.0]]


def test_a_table_and_json(command, tiny_path):
    status, out, err = command("bench", "-m", tiny_path, "-p", "16", "-n", "4", "-r", "2", "-t", "1", "--json")
    assert status == 0
    record = json.loads(out)
    keys = ["model", "host", "commit", "version", "kernel_set", "threads", "peaks", "results"]
    assert list(record) == keys and record["peaks"] == {"read_gb_per_s": 10.0, "int8_gmac_per_s": 100.0}
    assert [row["test"] for row in record["results"]] == ["pp16", "tg4"]
    for row in record["results"]:
        assert set(row) <= set(COLUMNS) and len(row["samples_ts"]) == 2
        assert row["min"] <= row["tokens_per_s"] <= row["max"] and row["fraction_of_read"] > 0
    status, out, err = command("bench", "-m", tiny_path, *QUICK, "-n", "0", "-p", "16")
    assert status == 0 and "pp16" in out and "tg" not in out and "peaks of this run, 1 thread: read 10.0" in err
    assert command("bench", "-m", tiny_path, "-p", "0", "-n", "0")[0] == 2


def test_a_sweep_in_csv(command, tiny_path):
    words = ("-t", "1,2", "-ub", "4-8*2", "-ctk", "f16,f32", "-ctv", "f16,f32", "-d", "0,16", "-pg", "8,2")
    status, out, err = command("bench", "-m", tiny_path, *QUICK, *words, "-o", "csv", "-n", "0")
    assert status == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert list(rows[0]) == list(COLUMNS) and len(rows) == 2 * 2 * 2 * 4
    found = [(r["n_threads"], r["n_ubatch"], r["type_k"], r["test"]) for r in rows]
    assert found[:5] == [
        ("1", "4", "f16", "pp8"), ("1", "4", "f16", "pp8+tg2"), ("1", "4", "f16", "pp8 @ d16"),
        ("1", "4", "f16", "pp8+tg2 @ d16"), ("1", "4", "f32", "pp8"),
    ]  # fmt: skip
    assert len(set(found)) == len(found) and found[-1] == ("2", "8", "f32", "pp8+tg2 @ d16")
    assert err.splitlines() == [
        f"hybridkern: -ctk {k} -ctv {v} is left out: keys and values have one type in this version"
        for k, v in (("f16", "f32"), ("f32", "f16"))
    ]
    assert all(float(r["tokens_per_s"]) > 0 and float(r["gmac_per_s"]) > 0 for r in rows)


def test_markdown_has_columns_for_what_is_swept(command, tiny_path):
    status, out, _ = command("bench", "-m", tiny_path, *QUICK, "--n-cpu-ffn", "0,1", "-o", "md")
    assert status == 0
    lines = out.splitlines()
    assert lines[0].startswith("tiny.gguf on ") and lines[1] == ""
    assert lines[2].startswith("| n-cpu-ffn | test | t/s | min | max | GMAC/s | of peak | GB/s | of read |")
    assert [line.split(" | ")[:2] for line in lines[4:]] == [
        ["| 0", "pp8"], ["| 0", "tg2"], ["| 1", "pp8"], ["| 1", "tg2"],
    ]  # fmt: skip


def test_a_setting_that_fails_leaves_the_others(command, tiny_path):
    status, out, err = command("bench", "-m", tiny_path, *QUICK, "-ngl", "all,0", "-o", "jsonl")
    assert status == 1
    assert [json.loads(line)["n_gpu_layers"] for line in out.splitlines()] == [0, 0]
    assert "error: n-gpu-layers all: " in err
    assert command("bench", "-m", tiny_path, *QUICK, "-ngl", "all")[0] == 1
    status, _, err = command("bench", "-m", tiny_path, *QUICK, "-c", "4")
    assert status == 2 and "pp8 takes a context of 9 tokens, -c is 4" in err


def test_a_depth_is_computed_before_the_clock_starts(tiny_path, monkeypatch):
    """The timed part evaluates exactly the tokens that count, behind exactly the depth, again and again."""
    import hybridkern as hk
    from hybridkern.measure import timing

    with hk.load(tiny_path, n_ctx=64, threads=1, device=None) as model, model.session() as session:
        cached = []

        def clock() -> float:
            cached.append(len(session.ids))
            return float(len(cached))

        monkeypatch.setattr(timing.time, "perf_counter", clock)
        for work, before, after in (
            (Workload(8, 0), 0, 8),
            (Workload(8, 0, 16), 16, 24),
            (Workload(0, 4, 16), 16, 20),
            (Workload(0, 4), 1, 5),
            (Workload(8, 4, 16), 16, 28),
        ):
            for _ in range(2):
                cached.clear()
                timing.seconds(session, work, list(range(5, 40)))
                assert cached[0] == before and cached[-1] == after, work


def test_pictures(command, tiny_path, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.figure", None)
        status, out, err = command("bench", "-m", "/nowhere", "--plot", tmp_path / "out.png")
        assert status == 2 and 'pip install "hybridkern[plot]"' in err
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.png"
    words = ("bench", "-m", tiny_path, *QUICK, "-d", "0,8,16", "-ctk", "f16,f32", "-o", "jsonl", "--plot")
    assert command(*words, path)[0] == 0
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    for bad, said in ((tmp_path / "out.nothing", "ends with none of"), (tmp_path / "no" / "out.png", "no folder")):
        status, out, err = command(*words, bad)
        assert status == 2 and out == "" and said in err


# peers


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """llama-cpp-python without an engine; the calls that it gets."""
    log = tmp_path / "log"
    monkeypatch.setenv("FAKE_LOG", str(log))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKE), *filter(None, [os.environ.get("PYTHONPATH")])]))
    return lambda: [json.loads(line) for line in log.read_text().splitlines()]


def test_a_peer_takes_turns(command, tiny_path, fake, tmp_path):
    words = ("--peer", "llama-cpp-python", "--peer-python", sys.executable, "-d", "0,8", "-b", "6", "-ctk", "f32")
    status, out, err = command("bench", "-m", tiny_path, *QUICK, *words, "-o", "jsonl", "-fa", "0,1")
    assert status == 0, err
    # Every token is equally likely there, so that the perplexity is the size of the vocabulary.
    assert "llama-cpp-python -fa 0 9.9 336.000" in err and "perplexity of a short text: here " in err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [r["engine"] for r in rows] == ["hybridkern", "llama-cpp-python", "llama-cpp-python"] * 4
    ours, *theirs = rows[:3]
    assert ours["ours_to_peer"] == pytest.approx(ours["tokens_per_s"] / max(r["tokens_per_s"] for r in theirs), 1e-3)
    assert [r["flash_attn"] for r in theirs] == [False, True] and theirs[0]["version"] == "9.9"
    calls = fake()
    model = next(c for c in calls if "model" in c)
    assert model == {"model": "tiny.gguf", "n_gpu_layers": 0, "use_extra_bufts": True}
    context = next(c for c in calls if "n_ctx" in c)
    assert context["n_threads"] == 1 and context["n_batch"] == 6 and context["type_k"] == context["type_v"] == 0
    assert {c["flash_attn_type"] for c in calls if "flash_attn_type" in c} == {0, 1}
    # A prompt of 8 tokens is two calls, of 6 and 2 tokens; steps of one token follow one another.
    decoded = [(c["at"], c["n"]) for c in calls if "at" in c]
    for expected in ((0, 6), (6, 2), (8, 6), (14, 2), (0, 1), (1, 1), (8, 1), (9, 1)):
        assert expected in decoded
    status, out, _ = command("bench", "-m", tiny_path, *QUICK, *words, "-o", "md")
    assert status == 0 and "| test | hybridkern t/s | llama-cpp-python t/s | ratio |" in out


def test_a_peer_that_cannot_be_used(command, tiny_path, fake, tmp_path):
    words = ("bench", "-m", tiny_path, *QUICK, "--peer", "ik-llama-cpp-python")
    status, _, err = command(*words, "--peer-python", sys.executable)
    assert status == 2 and "ik-llama-cpp-python is not installed in the Python" in err and "pip install" in err
    status, _, err = command(*words, "--peer-python", "/nowhere/python")
    assert status == 2 and "--peer-python /nowhere/python cannot be run" in err
    status, _, err = command("bench", "-m", tiny_path, *QUICK, "--peer-python", sys.executable)
    assert status == 2 and "--peer" in err
    status, _, err = command("bench", "-m", tiny_path, *QUICK, "-fa", "0")
    assert status == 0 and "-fa: attention is always fused" in err


def test_a_worker_that_fails_says_why(fake, tiny_path):
    options = {"path": tiny_path, "threads": 1, "n_ctx": 64, "n_gpu_layers": 3}
    with pytest.raises(PeerError, match="built without a GPU's backend"):
        Worker("peer", "llama.cpp", sys.executable, options)
    with Worker("peer", "llama.cpp", sys.executable, options | {"n_gpu_layers": 0}) as worker:
        with pytest.raises(PeerError, match="llama_decode returned 1"):  # beyond the context
            worker.seconds(Workload(65, 0), [1])
        assert worker.seconds(Workload(0, 2), [1]) > 0  # and it lives on
        worker._process.kill()
        with pytest.raises(PeerError, match="its process ended"):
            worker.seconds(Workload(0, 2), [1])
    with pytest.raises(PeerError, match="KeyError"):
        Worker("peer", "no engine", sys.executable, options)
    with pytest.raises(PeerError, match="cannot be run"):
        Worker("peer", "llama.cpp", "/nowhere/python", options)
