"""Records of tuning: kept, found, and left alone where anything is another."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import hybridkern as hk
from hybridkern.plan.plan import Plan
from hybridkern.runtime import planning, tuned
from hybridkern.runtime.calibration import rates_file
from hybridkern.runtime.planning import surroundings
from hybridkern.runtime.tuned import Tuned, keep, read, tuned_file

PRETENDED = {"gpu_memory": 900, "n_ctx": 512}  # which holds a part of the model


@pytest.fixture(scope="module")
def other(large_path) -> Plan:
    """Another plan than fitting makes."""
    return hk.plan(large_path, n_gpu_layers=1, tuned=False, **PRETENDED)


@pytest.fixture
def placed(large_path, other) -> Tuned:
    """Kept for the large model."""
    return kept(large_path, other, **PRETENDED)


@pytest.fixture(autouse=True)
def saying(monkeypatch):
    """Warnings that come once in a process come once in a test."""
    monkeypatch.setattr(planning, "_said", set())


def record_of(path, plan: Plan | None = None, **options) -> Tuned:
    facts, _ = surroundings(path, **options)
    return Tuned(3, 5, 256, plan, 100.0, 10.0, facts, "on a day")


def kept(path, plan: Plan | None = None, **options) -> Tuned:
    record = record_of(path, plan, **options)
    keep((plan or hk.plan(path, tuned=False)).fingerprint, record)
    return record


def test_what_is_kept_is_read(other, placed):
    record, mark = placed, other.fingerprint
    assert read(mark) == record and read("another") is None
    second = replace(record, threads=1, plan=None)
    keep("another", second)
    assert read("another") == second and read(mark) == record
    assert tuned_file().parent == rates_file().parent


def test_a_model_of_the_cpu_uses_it(tiny_path):
    kept(tiny_path)
    with hk.load(tiny_path) as model:
        engine = model.engine
        assert (engine.threads, engine.threads_batch, engine.n_ubatch) == (3, 5, 256)
        assert "tuned: -t 3 -tb 5 -ub 256, on a day, measured then: prompt 100 t/s, decode 10.0 t/s" in model.describe()
        assert "3 for single tokens, 5 for batches" in model.describe()
    with hk.load(tiny_path, tuned=False) as model:
        assert model.engine.n_ubatch == 512 and "tuned" not in model.describe()
    with hk.load(tiny_path, tap=lambda loaded: loaded) as model:  # imatrix
        assert model.engine.n_ubatch == 512


def test_a_placement_is_the_plan_that_was_measured(large_path, other, placed):
    made = hk.plan(large_path, **PRETENDED)
    assert made.assignment == other.assignment and made.assignment != hk.plan(large_path, tuned=False, **PRETENDED)
    assert "and its placement" in made.tuned and made.tuned in made.summary()
    # A plan that is saved says what lies where; that it was tuned is no part of it.
    assert hk.plan(large_path, plan=made).tuned == ""


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"threads": 4}, "threads = 4 was asked for"),
        ({"threads": 3}, "threads_batch = 3 was asked for"),
        ({"threads_batch": 3}, "threads_batch = 3 was asked for"),
        ({"n_ubatch": 128}, "n_ubatch = 128 was asked for"),
        ({"n_batch": 128}, "n_batch = 128 was asked for"),
        ({"n_gpu_layers": 2}, "a placement was asked for"),
        ({"n_gpu_layers": 0}, "a placement was asked for"),
        ({"n_cpu_ffn": 2}, "a placement was asked for"),
        ({"kv_offload": False}, "a placement was asked for"),
        ({"place": "blk.0=cpu"}, "a placement was asked for"),
        ({"op_offload": False}, "op_offload = False"),
        ({"repack": True}, "repack = True"),
        ({"kv_type": "q8_0"}, "the KV cache was f16, and is q8_0"),
        ({"n_ctx": 256}, "the context was 512, and is 256"),
        ({"gpu_memory": 700}, "the memory that may be used is another"),
        ({"gpu_memory": [900, 900]}, "the GPU was"),
        ({"device": None, "gpu_memory": None}, "the GPU was"),
    ],
)
def test_what_contradicts_is_told_and_wins(large_path, placed, asked, why):
    options = PRETENDED | asked
    made, plain = hk.plan(large_path, **options), hk.plan(large_path, tuned=False, **options)
    assert made.tuned.startswith("what was tuned is not used: ") and why in made.tuned
    assert made.assignment == plain.assignment and plain.tuned == ""


def test_what_is_placed_without_asking():
    options = planning.LoadOptions.checked(**planning._DEFAULTS)
    assert tuned.fixed(options, []) is None and tuned.fixed(replace(options, n_gpu_layers=0), []) is None
    assert tuned.fixed(replace(options, fit=False), []) == "fit = False was asked for"
    assert tuned.fixed(replace(options, n_gpu_layers="all"), []) == "a placement was asked for"


@pytest.mark.parametrize("same", [{}, {"threads": 3, "threads_batch": 5}, {"n_ubatch": 256}, {"gpu_memory": 910}])
def test_what_agrees_does_not_contradict(large_path, other, placed, same):
    assert hk.plan(large_path, **PRETENDED | same).assignment == other.assignment


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("version", "0.0.1", "hybridkern was 0.0.1"),
        ("kernels", "sse9", "the kernel set was sse9"),
        ("cores", 4096, "the number of cores was 4096"),
        ("driver", "12.4", "the driver was 12.4, and is None"),
        ("gpus", ["another"], "the GPU was ['another']"),
        ("memory", {"cpu": 1 << 30}, "the memory that may be used is another"),
        ("memory", None, "the memory that may be used is another"),
    ],
)
def test_another_machine_or_version(tiny_path, name, value, why):
    record = record_of(tiny_path)
    keep(hk.plan(tiny_path).fingerprint, replace(record, facts={**record.facts, name: value}))
    assert why in hk.plan(tiny_path).tuned
    with hk.load(tiny_path) as model:
        assert model.engine.n_ubatch == 512


def test_another_model_or_processor_has_none(tiny_path, large_path, placed, monkeypatch):
    assert hk.plan(tiny_path).tuned == ""
    monkeypatch.setattr(tuned, "cpu_name", lambda: "another")
    assert hk.plan(large_path, **PRETENDED).tuned == ""


def test_a_plan_that_does_not_fit_any_more(large_path, placed, monkeypatch):
    monkeypatch.setattr(planning.footprint, "available_memory", lambda: 1 << 28)
    assert "MiB on cpu, 256 MiB are free" in hk.plan(large_path, **PRETENDED).tuned


def test_after_memory_was_short_it_is_not_tried_again(large_path, placed):
    """`replanned` asks again where an engine finds less memory than the plan counted on."""
    from hybridkern.gguf import GGUFFile
    from hybridkern.model import LoadedModel
    from hybridkern.plan.unread import Unread
    from hybridkern.runtime.arguments import LoadOptions

    with GGUFFile.open(large_path) as file:
        options = LoadOptions.checked(**planning._DEFAULTS | PRETENDED)
        planner = planning.Planner(LoadedModel.from_gguf(Unread(file)), file, options, pretends=True)
        assert planner.plan().tuned.startswith("tuned: ") and planner.options.threads == 3
        assert planner.plan().tuned == "what was tuned is not used: memory is short" and planner.options is options


def damaged() -> dict[str, str]:
    good = json.loads(tuned_file().read_text())
    key = next(iter(good["records"]))

    def with_record(change) -> str:
        return json.dumps({**good, "records": {key: change(dict(good["records"][key]))}})

    return {
        "no JSON": "{",
        "empty": "",
        "a list": "[]",
        "records that are none": json.dumps({"version": tuned.VERSION, "records": [1]}),
        "a record that is none": with_record(lambda r: 7),
        "a number that is none": with_record(lambda r: r | {"threads": "8"}),
        "a negative number": with_record(lambda r: r | {"n_ubatch": -1}),
        "a missing field": with_record(lambda r: {k: v for k, v in r.items() if k != "prefill"}),
        "a field too many": with_record(lambda r: r | {"more": 1}),
        "facts that are none": with_record(lambda r: r | {"facts": None}),
        "a plan that is none": with_record(lambda r: r | {"plan": {"hybridkern plan": 1}}),
        "nested beyond reason": "[" * 100_000,
        "bytes that are no text": "\udcff",
    }


@pytest.mark.parametrize("what", range(13))
def test_a_damaged_file_is_a_warning(tiny_path, what):
    record = kept(tiny_path)
    name, text = list(damaged().items())[what]
    tuned_file().write_bytes(text.encode(errors="surrogateescape"))
    with pytest.warns(UserWarning, match="what `hybridkern tune` kept is not used") as said:
        assert hk.plan(tiny_path).tuned == "", name
    assert len([w for w in said if "tune" in str(w.message)]) == 1
    kept(tiny_path)  # which begins anew, or replaces the record
    assert read(hk.plan(tiny_path).fingerprint) == record


def test_a_file_of_another_version_is_none(tiny_path):
    kept(tiny_path)
    tuned_file().write_text(json.dumps(json.loads(tuned_file().read_text()) | {"version": tuned.VERSION + 1}))
    assert hk.plan(tiny_path).tuned == ""


def test_a_home_that_cannot_be_written_to(tiny_path, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(hk.HybridKernError, match="cannot be written, nothing is kept"):
        kept(tiny_path)
    with pytest.warns(UserWarning, match="cannot be read"):
        hk.plan(tiny_path)
