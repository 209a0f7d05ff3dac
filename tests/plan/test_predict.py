"""The cost model: sums that can be done by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planned import plan

from hybridkern.plan.assignment import Assignment
from hybridkern.plan.inventory import Inventory
from hybridkern.plan.predict import DISTURBED, GPU_START, START, STREAMED, CostModel
from hybridkern.plan.rates import DEFAULT_RATES, LinkRates, Rates, SetRates
from hybridkern.plan.rules import Rules

# One second for 1e9 bytes with one column and for 1e12 multiply-accumulates with many, nothing for anything else.
PLAIN = SetRates(
    read={"": 1e9}, macs={"": 1e12}, op=0, attend=0, cache=1e99, attend_macs=1e99, rows=1e99,
    step=0, load=1e9, op_many=0,
)  # fmt: skip
QUICK = replace(PLAIN, read={"": 1e10}, macs={"": 1e14})
FREE = LinkRates(up=1e99, down=1e99, latency=0, copy=0)


@pytest.fixture(scope="module")
def inventory(large: Any) -> Inventory:
    return Inventory.of(large)


def cost(inventory: Inventory, cpu: SetRates = PLAIN, gpu: SetRates = QUICK, link: LinkRates = FREE) -> CostModel:
    return CostModel(inventory, Rates(cpu, {"": gpu}, {"": link}), "f16")


def placed(inventory: Inventory, n_gpu: int, **named: Any) -> Assignment:
    """The last n_gpu blocks on the GPU, the head with the CPU."""
    on = ["cuda0" if b.index >= 32 - n_gpu else "cpu" for b in inventory.blocks]
    return Assignment({m.name: on[m.block] for m in inventory.matrices()}, tuple(on), "cpu", "cpu", 512, **named)


def block_bytes(inventory: Inventory) -> int:
    return sum(m.file_bytes for m in inventory.blocks[0].matrices)


@pytest.mark.parametrize("n_gpu", [0, 10, 32])
def test_a_token_reads_every_weight_once(inventory, n_gpu):
    one, head = block_bytes(inventory), inventory.head.file_bytes
    want = (32 - n_gpu) * one / 1e9 + n_gpu * one / 1e10 + head / 1e9
    assert cost(inventory).token(placed(inventory, n_gpu)) == pytest.approx(want)


def test_a_prompt_is_multiplied(inventory):
    macs = sum(m.macs for m in inventory.matrices())
    head = inventory.head.file_bytes / 1e9
    fast = replace(PLAIN, read={"": 1e99})
    assert cost(inventory, fast).prompt(placed(inventory, 0), 1024) == pytest.approx(1024 * macs / 1e12, rel=1e-6)
    few = cost(inventory).prompt(placed(inventory, 0), 4)  # bound by reading
    assert few == pytest.approx(32 * block_bytes(inventory) / 1e9 + head, rel=1e-3)


def test_every_change_of_device_is_a_crossing(inventory):
    link = replace(FREE, latency=1.0)
    model = cost(inventory, link=link)
    base = cost(inventory)
    for n_gpu, crossings in ((0, 0), (10, 2), (32, 2)):
        a = placed(inventory, n_gpu)
        assert model.step(a, 1).crossings == crossings
        assert model.token(a) - base.token(a) == pytest.approx(crossings)
    ffn = placed(inventory, 32)
    ffn = replace(ffn, tensors={n: "cpu" if "ffn" in n else d for n, d in ffn.tensors.items()})
    assert model.step(ffn, 1).crossings == 64  # into each attention and out of it


def test_streamed_weights_are_copied_beside_computing(inventory):
    one = block_bytes(inventory)
    a = placed(inventory, 0, streamed=dict.fromkeys(range(32), "cuda0"), stream_from=64, stream_depth=2)
    a = replace(a, kv=("cuda0",) * 32)
    slow_bus = cost(inventory, link=replace(FREE, up=1e8))
    seconds = slow_bus.step(a, 512).seconds
    assert seconds == pytest.approx(32 * one / 1e8, rel=0.1)  # the bus is all that counts
    assert slow_bus.step(a, 63).seconds == slow_bus.step(replace(a, streamed={}), 63).seconds  # too few tokens
    reads = replace(QUICK, read={"": 1e99})
    quick_bus = cost(inventory, gpu=reads, link=replace(FREE, up=1e15))
    macs = sum(m.macs for m in inventory.matrices())
    assert quick_bus.step(a, 512).seconds == pytest.approx(
        512 * macs / 1e14 + inventory.head.file_bytes / 1e9, rel=0.05
    )


def test_nothing_overlaps_where_the_cpu_attends(inventory):
    a = placed(inventory, 0, streamed=dict.fromkeys(range(32), "cuda0"), stream_from=2, stream_depth=1)
    held = placed(inventory, 32)
    held = replace(held, kv=("cpu",) * 32, head="cpu")
    model = cost(inventory, link=replace(FREE, up=1e8))
    blocks = sum(model.step(held, 512).blocks)
    copies = 32 * block_bytes(inventory) / 1e8 / STREAMED
    made = model.step(a, 512)
    assert sum(made.blocks) == pytest.approx(DISTURBED * (blocks + copies), rel=0.05)
    assert made.copied == pytest.approx(copies) and made.waited > copies


def test_no_more_blocks_are_copied_ahead_than_the_ring_holds(inventory):
    """Half of the blocks stand in front and are slow: a ring of all of them would hide every copy."""
    slow = replace(QUICK, macs={"": 1e12})

    def seconds(depth: int) -> float:
        a = placed(inventory, 16, streamed=dict.fromkeys(range(16), "cuda0"), stream_from=1, stream_depth=depth)
        reverse = replace(a, tensors={m.name: "cuda0" if m.block < 16 else "cpu" for m in inventory.matrices()},
                          streamed=dict.fromkeys(range(16, 32), "cuda0"), kv=("cuda0",) * 32)  # fmt: skip
        return cost(inventory, gpu=slow, link=replace(FREE, up=1e9)).step(reverse, 512).waited

    assert seconds(8) == 0 < seconds(2)


def test_depth_costs_what_the_cache_costs(inventory):
    cached = replace(PLAIN, cache=1e9)
    a = placed(inventory, 0)
    more = cost(inventory, cached).token(a, 1000) - cost(inventory, cached).token(a, 0)
    assert more == pytest.approx(32 * 1000 * 2 * 4096 * 2 / 1e9)


def test_predictions_are_near_what_was_measured(large):
    """Of the H200 (bench/results/cuda-h200.md): a model of this shape, prefill 35,000 t/s, decode 523 t/s, Q4_K_M; this
    one is Q4_K throughout with a head of 512 rows."""
    p = plan(large, 30000, n_ubatch=512)
    assert 25_000 < p.prefill < 45_000 and 480 < p.decode < 680
    assert p.rates == DEFAULT_RATES.origin


def test_the_load_is_bytes_over_rates(large):
    p, q = plan(large, None), plan(large, 30000, Rules(n_gpu_layers="all"))
    packed = p.device("cpu").memory["weights"] / DEFAULT_RATES.cpu.load
    assert p.load == pytest.approx(START + packed, rel=0.1)
    weights = q.device("cuda0").memory["weights"] / DEFAULT_RATES.gpus[""].load
    assert q.load == pytest.approx(weights + START + GPU_START, rel=0.1)
