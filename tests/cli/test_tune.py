"""hybridkern tune: searches, shows, keeps; and what is kept is used and told."""

from __future__ import annotations

import json
import re

import pytest

from hybridkern.measure import trials
from hybridkern.measure.search import Choice
from hybridkern.measure.timing import Workload
from hybridkern.runtime.tuned import tuned_file


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def fastest_with_64(monkeypatch):
    """Times by formula: a step of 64 tokens is best for prompts, by far."""

    def seconds(session, work, ids):
        engine = session.model.engine
        return work.tokens * (0.001 + 0.001 * (work.n_prompt > 0) * (engine.n_ubatch / 64 - 1))

    monkeypatch.setattr(trials, "seconds", seconds)


def test_the_winner_is_shown_kept_and_used(command, tiny_path, fastest_with_64):
    status, out, err = command("tune", "-m", tiny_path, "-c", "256")
    assert status == 0, err
    *table, flags = out.splitlines()
    assert re.fullmatch(r"-t \d+ -ub 64", flags)
    assert any("the plan's" in line and "-ub 512" in line for line in table)
    assert any("winner" in line and "-ub 64" in line and "1,000.0" in line for line in table)
    assert re.search(r"hybridkern: \d+ choices in \d+ s$", err, re.M) and f"kept in {tuned_file()}" in err
    (record,) = json.loads(tuned_file().read_text())["records"].values()
    assert record["n_ubatch"] == 64 and record["plan"] is None and record["prefill"] == pytest.approx(1000)
    words = ("generate", "-m", tiny_path, "-p", "x", "-n", "1")
    status, out, _ = command(*words, "--dry-run")
    assert status == 0 and "steps of 64 tokens" in out and f"tuned: {flags}, on " in out
    status, _, err = command(*words, "--verbose")
    assert status == 0 and f"tuned: {flags}, on " in err
    status, out, _ = command(*words, "--dry-run", "--no-tune-cache")
    assert status == 0 and "steps of 512 tokens" in out and "tuned" not in out
    status, out, _ = command(*words, "--dry-run", "-ub", "32")
    assert "steps of 32 tokens" in out and "what was tuned is not used: n_ubatch = 32 was asked for" in out
    tuned_file().write_text("{")
    status, out, err = command(*words, "--dry-run")
    assert status == 0 and "steps of 512 tokens" in out
    status, _, err = command(*words, "-c", "100")
    assert status == 0


def test_nothing_is_kept_unless_wanted(command, tiny_path, fastest_with_64):
    status, out, err = command("tune", "-m", tiny_path, "-c", "256", "--no-keep")
    assert status == 0 and out.endswith("-ub 64\n") and "kept" not in err
    assert not tuned_file().exists()


def test_a_budget_that_is_short_is_told(command, tiny_path):
    status, out, err = command("tune", "-m", tiny_path, "-c", "256", "--budget-seconds", "1")
    assert status == 0 and re.search(r"-t \d+( -tb \d+)? -ub \d+\n$", out)
    assert re.search(r"\d+ choices in \d+ s", err)


@pytest.mark.parametrize(
    "words",
    [
        ("-t", "2"), ("-tb", "2"), ("-ub", "64"), ("-ngl", "0"), ("-ngl", "all"), ("--place", "blk.0=cpu"),
        ("-ot", "ffn=cpu"), ("--n-cpu-ffn", "1"), ("-nkvo",), ("--no-op-offload",), ("-fit", "off"), ("-ts", "1"),
        ("--plan", "plan.json"), ("--no-repack",), ("--budget-seconds", "0"), ("--budget-seconds", "soon"),
    ],
)  # fmt: skip
def test_flags_that_fix_what_is_looked_for(command, tiny_path, words):
    status, out, err = command("tune", "-m", tiny_path, *words)
    assert status == 2 and out == "" and words[0].lstrip("-") in err


def test_a_model_that_is_none(command, tmp_path):
    status, _, err = command("tune", "-m", tmp_path / "no.gguf")
    assert status == 1 and "no such file" in err


@pytest.mark.filterwarnings("ignore:n_ctx = 4096 is more")
def test_workloads_follow_the_budget(tiny_path):
    """A run of a workload takes a small part of the budget, and threads change without a load."""
    import hybridkern as hk

    def chosen(budget: float, speed: float, n_ctx: int) -> tuple[Workload, Workload, Workload]:
        options = {"n_ctx": n_ctx, "device": None, "tuned": False}
        with pytest.MonkeyPatch.context() as patch, trials.Trials(tiny_path, options, budget, lambda text: None) as t:
            patch.setattr(trials, "seconds", lambda session, work, ids: work.tokens / speed)
            assert t(Choice(1, 1, 64)).prefill == pytest.approx(speed)
            return t._prompt, t._long, t._answer

    assert chosen(60, 10_000, 4096) == (Workload(512, 0), Workload(2048, 0), Workload(0, 64, 512))
    assert chosen(60, 1000, 4096) == (Workload(512, 0), Workload(0, 0), Workload(0, 64, 512))
    assert chosen(60, 100, 4096) == (Workload(64, 0), Workload(0, 0), Workload(0, 64, 64))
    assert chosen(1, 1, 4096) == (Workload(16, 0), Workload(0, 0), Workload(0, 8, 16))
    assert chosen(60, 10_000, 100) == (Workload(32, 0), Workload(0, 0), Workload(0, 3, 32))
    with trials.Trials(tiny_path, {"n_ctx": 128, "tuned": False}, 1, lambda text: None) as t:
        t(Choice(1, 1, 64))
        engine = t._model.engine
        t(Choice(2, 1, 64))
        assert t._model.engine is engine and (engine.threads, engine.threads_batch) == (2, 1)
        t(Choice(2, 1, 128))
        assert t._model.engine is not engine
        assert (
            hk.plan(tiny_path, n_ctx=128, n_ubatch=128, tuned=False).assignment == t.plans[Choice(2, 1, 128)].assignment
        )
        assert t(Choice(2, 1, 64, "all")).error  # there is no GPU
