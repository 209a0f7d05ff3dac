"""Plans as things: kept, replayed, shown; and how fast they are made."""

from __future__ import annotations

import json
import resource
import time
from dataclasses import replace
from pathlib import Path

import pytest
from planned import model_of, plan, write_large

import hybridkern as hk
from hybridkern.errors import ArgumentError
from hybridkern.plan.plan import Plan
from hybridkern.plan.planning import check_replay
from hybridkern.plan.rules import Rules


def test_a_plan_survives_its_file(large):
    for p in (plan(large, 2500, streams=True), plan(large, None), plan(large, 1500, Rules(n_cpu_ffn=3))):
        assert Plan.from_json(p.to_json()) == p


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"hybridkern plan": 1}', '{"hybridkern plan": 999}', "nonsense"])
def test_what_is_no_plan(text):
    with pytest.raises(ArgumentError, match="plan"):
        Plan.from_json(text)


def test_a_plan_of_another_model_is_refused(large, tmp_path):
    other = model_of(write_large(tmp_path / "small.gguf", n_layer=3))
    check_replay(plan(large, 2000), large)
    with pytest.raises(ArgumentError, match="made for another model"):
        check_replay(plan(large, 2000), other)


def test_rows_are_the_whole_model(large):
    p = plan(large, 2500)
    assert [r.name for r in p.table()] == ["embedding", *(f"blk.{i}" for i in range(32)), "head"]
    for d in p.devices:
        weights = sum(r.weights.get(d.name, 0) for r in p.table())
        assert weights == d.memory["weights"]  # shapes here need no padding to 256
    token = sum(r.decode for r in p.table())
    assert 0.7 / token < p.decode < 1.05 / token


def test_a_public_plan_reads_no_data(large_path: Path):
    """The data of this file are a hole of 3.8 GB; to read it would make it resident."""
    hk.plan(large_path, gpu_memory=4000)
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    p = hk.plan(large_path, gpu_memory=4000, n_ctx=2048)
    assert time.perf_counter() - begin < 10  # of a busy machine; 0.4 s otherwise
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10
    assert isinstance(p, hk.Plan) and p.divided and p.n_ctx == 2048


def test_the_room_and_the_function_have_one_name(large_path: Path):
    from hybridkern.plan.assignment import Assignment

    assert isinstance(hk.plan(large_path).assignment, Assignment)
    assert hk.plan.plan.Plan is hk.Plan


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("stream_kept", "x", "its assignment.stream_kept is 'x'"),
        ("stream_from", 1.5, "stream_from is 1.5"),
        ("n_ubatch", True, "n_ubatch is True"),
        ("embedding", 5, "embedding is 5"),
        ("kv", [7], "no name"),
        ("kv", ["cpu"], "the caches of 1 instead of 32 blocks"),
        ("tensors", {"blk.0.attn_q.weight": "cpu"}, "changed by hand .see blk.0"),
        ("stream_kept", -1, "see stream_from .* stream_kept -1"),
        ("stream_kept", 99, "stream_kept 99"),
        ("stream_depth", -1, "stream_depth -1"),
        ("streamed", [[999, "cuda0"]], "block 999 is to be streamed"),
        ("head", "x", "head on 'x'"),
        ("n_ubatch", -1, "n_ubatch -1"),
    ],
)
def test_a_plan_that_was_changed_by_hand(large, name, value, said):
    record = json.loads(plan(large, 2500, streams=True).to_json())
    record["assignment"][name] = value
    with pytest.raises(ArgumentError, match=said):
        check_replay(Plan.from_json(json.dumps(record)), large)


@pytest.mark.parametrize(
    "change", [{"n_ctx": 0}, {"n_ctx": 10**15}, {"kv_type": "f99"}, {"kv_pages": 0}, {"kv_pages": -1}], ids=str
)
def test_a_plan_of_a_cache_that_cannot_be(large, change):
    record = json.loads(plan(large, None).to_json()) | change
    with pytest.raises(ArgumentError, match="says what cannot be.*" + next(iter(change))):
        check_replay(Plan.from_json(json.dumps(record)), large)


def test_a_plan_from_before_blocks_were_kept(large):
    record = json.loads(plan(large, 2500, Rules(n_gpu_layers=0), streams=True).to_json())
    assert record["assignment"].pop("stream_kept") > 0 and all(row.pop("kept") is not None for row in record["rows"])
    old = Plan.from_json(json.dumps(record))
    assert old.assignment.streamed and not old.assignment.kept


def test_a_replayed_plan_allows_nothing_beside_it(large, tmp_path):
    from hybridkern.runtime.arguments import LoadOptions
    from hybridkern.runtime.planning import _DEFAULTS

    path = tmp_path / "plan.json"
    path.write_text(plan(large, None).to_json())
    assert LoadOptions.checked(**_DEFAULTS, plan=path).repeats
    with pytest.raises(ArgumentError, match="replayed as it is"):
        LoadOptions.checked(**_DEFAULTS, plan=path, n_gpu_layers=3).repeats  # noqa: B018


def test_a_summary_says_what_matters(large):
    said = "\n".join(plan(large, 3000, streams=True, rules=Rules(n_gpu_layers=0)).summary())
    assert "0 of 32 blocks on a GPU" in said and "t/s" in said and "streamed" in said and "built-in" in said
    assert "pretend" not in said and replace(plan(large, None), notes=("hear",)).summary()[-1] == "hear"
