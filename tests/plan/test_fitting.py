"""Fitting: inside the budget and the rules, as fast as the cost model can find."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from planned import MIB, gpu, plan, shape

from hybridkern.errors import OutOfMemoryError
from hybridkern.model import LoadedModel
from hybridkern.plan.inventory import Inventory
from hybridkern.plan.plan import Plan
from hybridkern.plan.predict import CostModel
from hybridkern.plan.rates import DEFAULT_RATES
from hybridkern.plan.rules import Rules


def request(p: Plan, large: LoadedModel) -> float:
    """What fitting makes least: seconds of a prompt of 512 tokens and 256 more, and a tenth of a prompt of 1,536 (of a
    context of 2,048)."""
    cost = CostModel(Inventory.of(large), DEFAULT_RATES, "f16")
    a = p.assignment
    return cost.prompt(a, 512) + 256 * cost.token(a, 640) + 0.1 * cost.prompt(a, 1536)


def n_blocks(p: Plan) -> int:
    return sum(r.device.startswith("cuda") and "+" not in r.device for r in p.rows if r.name.startswith("blk."))


def test_everything_fits_where_there_is_room(large):
    p = plan(large, 20000)
    assert p.assignment.devices == ("cuda0",) and n_blocks(p) == 32


def test_nothing_fits_without_room(large):
    p = plan(large, 10)
    assert p.assignment.devices == ("cpu",) and p.device("cuda0") is None


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("mib", [150, 400, 1000, 2500, 4000, 5200])
def test_a_budget_is_used_and_kept(large, mib, streams):
    """Whatever is left would not hold the smallest matrix any more, but for what other variants of it cost."""
    p = plan(large, mib, streams=streams)
    held = p.device("cuda0")
    assert held is not None and mib * MIB * 0.85 < held.nbytes <= mib * MIB
    assert sum(held.memory.values()) == held.nbytes


@pytest.mark.parametrize("streams", [False, True])
def test_more_memory_is_never_slower(large, streams):
    seconds = [request(plan(large, mib, streams=streams), large) for mib in range(300, 5200, 700)]
    assert all(b <= a * 1.005 for a, b in itertools.pairwise(seconds))


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("mib", [1200, 3000])
def test_auto_is_at_least_as_good_as_every_number_of_layers(large, mib, streams):
    best = []
    for layers in (0, 2, 5, 8, 11, 13, 16, 20, 26, 32):
        try:
            best.append(request(plan(large, mib, Rules(n_gpu_layers=layers), streams=streams), large))
        except OutOfMemoryError:
            break
    assert len(best) > 3 and request(plan(large, mib, streams=streams), large) <= min(best) * 1.001


def test_where_the_caches_of_streamed_blocks_find_no_room(large):
    """All blocks are streamed and the CPU attends, but for the one that is kept, or, where it attends slowly, a part of
    them is."""
    a = plan(large, 1200, Rules(n_gpu_layers=0), streams=True).assignment
    assert len(a.streamed) == 32 and a.kept == {31: "cuda0"} and a.kv == ("cpu",) * 31 + ("cuda0",)
    slow = replace(DEFAULT_RATES, cpu=replace(DEFAULT_RATES.cpu, attend_macs=1e9))
    a = plan(large, 1200, Rules(n_gpu_layers=0), rates=slow, streams=True).assignment
    assert 0 < len(a.streamed) < 32 and all((i in a.streamed) == (d == "cuda0") for i, d in enumerate(a.kv))


def test_fitting_works_inside_the_rules(large):
    rules = Rules(place="blk.31=cpu,blk.0=cuda0", override_tensor=("blk.[4-6].ffn_down=cpu",), n_cpu_ffn=0)
    p = plan(large, 2000, rules)
    a = p.assignment
    assert all(a.tensors[f"blk.31.{t}.weight"] == "cpu" for t in ("attn_q", "ffn_down")) and a.kv[31] == "cpu"
    assert all(a.tensors[f"blk.0.{t}.weight"] == "cuda0" for t in ("attn_q", "ffn_down")) and a.kv[0] == "cuda0"
    assert all(a.tensors[f"blk.{i}.ffn_down.weight"] == "cpu" for i in (4, 5, 6))
    held = p.device("cuda0")
    assert held is not None and held.nbytes > 1800 * MIB  # and does not stop because something was fixed


def test_caches_that_stay_with_the_cpu_make_room(large):
    with_caches, without = plan(large, 2000), plan(large, 2000, Rules(kv_offload=False))
    assert set(without.assignment.kv) == {"cpu"} and "KV cache" not in without.device("cuda0").memory
    weights = [p.device("cuda0").memory["weights"] for p in (with_caches, without)]
    assert weights[1] > weights[0]


def test_what_does_not_fit_is_said_in_one_sentence(large):
    with pytest.raises(
        OutOfMemoryError, match=r"does not fit.*cuda0 would need \d+ MiB \(weights \d+ MiB.*give 3000 MiB"
    ):
        plan(large, 3000, Rules(n_gpu_layers="all"))


def test_a_context_shrinks_aloud_if_that_is_allowed(large):
    wide = plan(large, 20000, Rules(n_gpu_layers="all"), n_ubatch=512).device("cuda0")
    mib = wide.nbytes // MIB - 900  # 450 of which are room for further sequences
    with pytest.raises(OutOfMemoryError):
        plan(large, mib, Rules(n_gpu_layers="all"), n_ubatch=512)
    p = plan(large, mib, Rules(n_gpu_layers="all"), n_ubatch=512, least_ctx=256)
    assert 256 <= p.n_ctx < 2048 and any("instead of 2048" in note for note in p.notes)
    longer = plan(large, mib, Rules(n_gpu_layers="all"), n_ubatch=512, shape=shape(p.n_ctx))
    assert longer.device("cuda0").nbytes <= mib * MIB
    with pytest.raises(OutOfMemoryError):
        plan(large, mib, Rules(n_gpu_layers="all"), n_ubatch=512, shape=shape(p.n_ctx + 512))


def test_without_fitting_everything_goes_to_the_gpu_or_fails(large):
    assert plan(large, 20000, fit=False).assignment.devices == ("cuda0",)
    with pytest.raises(OutOfMemoryError):
        plan(large, 3000, fit=False)


def test_the_margin_stays_free(large):
    from dataclasses import replace

    from hybridkern.plan.devices import Host
    from hybridkern.plan.planning import Task, make_plan
    from hybridkern.plan.rates import DEFAULT_RATES

    g = replace(gpu(3000), margin=700 * MIB)
    p = make_plan(large, Task("m", shape(), Rules(), streams=False), [g], Host(1 << 40), DEFAULT_RATES)
    assert p.device("cuda0").nbytes <= 2300 * MIB
    g = replace(gpu(9000), budget=2500 * MIB)
    assert g.usable == 2500 * MIB - g.context


def test_several_gpus_share_the_blocks(large):
    p = plan(large, [2500, 2500, 1200])
    a = p.assignment
    on = [a.tensors[f"blk.{i}.attn_q.weight"] for i in range(32)]
    assert on == sorted(on) and set(on) == {"cuda0", "cuda1", "cuda2"}  # runs of blocks, in order
    assert all(a.kv[i] == on[i] for i in range(32)) and a.head == "cuda2"
    assert all(p.device(f"cuda{i}").nbytes <= mib * MIB for i, mib in enumerate((2500, 2500, 1200)))


def test_shares_of_the_layers(large):
    p = plan(large, [9000, 9000], Rules(n_gpu_layers="all", tensor_split=(3.0, 1.0)))
    on = [p.assignment.tensors[f"blk.{i}.attn_q.weight"] for i in range(32)]
    assert on.count("cuda0") == 24 and on.count("cuda1") == 8


def test_a_streamed_block_has_its_cache_on_the_gpu(large):
    p = plan(large, 3000, Rules(n_gpu_layers=0), streams=True)
    a = p.assignment
    assert set(a.streamed) == set(range(32)) and set(a.kv) == {"cuda0"} and a.stream_depth >= 2
    assert 2 <= a.stream_from <= a.n_ubatch and {"stream ring", "KV cache"} <= set(p.device("cuda0").memory)
    assert p.prefill > 2 * plan(large, 3000, Rules(n_gpu_layers=0)).prefill


def test_what_the_ring_holds_serves_small_steps(large):
    """A token is read of fewer weights; where crossing takes longer than the CPU, it is not."""
    p = plan(large, 3000, Rules(n_gpu_layers=0), streams=True)
    a = p.assignment
    assert sorted(a.kept) == [30, 31] == [int(r.name[4:]) for r in p.rows if r.kept]
    cost = CostModel(Inventory.of(large), DEFAULT_RATES, "f16")
    without = cost.token(replace(a, stream_kept=0), 128)
    assert 0.93 < cost.token(a, 128) / without < 0.96  # 2 of 32 blocks, and the way there and back
    assert "the last 2 of them stay for the answer" in p.summary()[-1]
    far = replace(DEFAULT_RATES, links={d: replace(r, latency=1.0) for d, r in DEFAULT_RATES.links.items()})
    slow = plan(large, 3000, Rules(n_gpu_layers=0), rates=far, streams=True).assignment
    assert not slow.kept


def test_caches_that_must_stay_do(large):
    p = plan(large, 3000, Rules(n_gpu_layers=0, kv_offload=False), streams=True)
    assert len(p.assignment.streamed) == 32 and set(p.assignment.kv) == {"cpu"}


def test_main_memory_decides_about_packing(large):
    from hybridkern.plan.devices import Host
    from hybridkern.plan.planning import Task, make_plan
    from hybridkern.plan.rates import DEFAULT_RATES

    def packed(free: int | None, **task: Any) -> Plan:
        return make_plan(large, Task("m", shape(), Rules(), **task), [], Host(free), DEFAULT_RATES)

    assert packed(1 << 40).packed and packed(None).packed
    short = packed(1 << 30)
    assert not short.packed and "packing the CPU's weights takes" in short.notes[0]
    assert packed(1 << 30, packed=True).packed and packed(1 << 30, mapped=False).packed
    assert "weights" not in short.device("cpu").memory
