"""Memory that others take between a plan and its load; rates that are measured and kept."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from planned import plan

from hybridkern.errors import OutOfMemoryError
from hybridkern.plan.rates import DEFAULT_RATES, Rates
from hybridkern.runtime import calibration
from hybridkern.runtime.planning import TRIES, replanned


class Shrinking:
    """A planner for a GPU of which less is free each time."""

    def __init__(self, model: Any, replays: bool = False) -> None:
        self._model, self.replays, self.made = model, replays, []

    def plan(self) -> Any:
        self.made.append(plan(self._model, 4000 - 500 * len(self.made)))
        return self.made[-1]


def refusing(times: int) -> Any:
    """An engine that finds no memory so many times."""
    left = [times]

    def make(p: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise OutOfMemoryError("the GPU cannot give 77 MiB")
        return p

    return make


def test_it_is_planned_again_with_what_is_free(large, recwarn):
    planner = Shrinking(large)
    p, engine = replanned(refusing(2), planner)
    said = [str(w.message) for w in recwarn if "planning again" in str(w.message)]
    assert len(planner.made) == 3 and p is engine is planner.made[-1]
    assert [text[:59] for text in said] == [
        "planning again with the memory that is free now (1 of 3): t",
        "planning again with the memory that is free now (2 of 3): t",
    ]
    sizes = [m.device("cuda0").nbytes for m in planner.made]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 3


def test_three_times_at_most(large, recwarn):
    planner = Shrinking(large)
    with pytest.raises(OutOfMemoryError, match="cannot give 77 MiB"):
        replanned(refusing(9), planner)
    assert len(planner.made) == TRIES + 1 == 4


def test_a_plan_that_is_replayed_is_followed_or_fails(large):
    planner = Shrinking(large, replays=True)
    with pytest.raises(OutOfMemoryError):
        replanned(refusing(1), planner)
    assert len(planner.made) == 1


def test_without_a_gpu_there_is_nothing_to_plan_again(large):
    planner = SimpleNamespace(plan=lambda: plan(large, None), replays=False)
    with pytest.raises(OutOfMemoryError):
        replanned(refusing(1), planner)


# rates


def test_rates_survive_their_file():
    assert Rates.from_json(json.loads(json.dumps(DEFAULT_RATES.to_json()))) == DEFAULT_RATES


def test_a_calibration_is_quick_kept_and_sane(tmp_path, monkeypatch):
    """A sane figure is within a factor of 30 of another machine's, and the machine is not asked twice."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert calibration.known_rates([], 1) is DEFAULT_RATES and not calibration.are_known([], 1)
    begin = time.perf_counter()
    rates = calibration.calibrate([], 1)
    assert time.perf_counter() - begin < 20  # two seconds on a machine that does nothing else
    assert rates.origin.startswith("measured on") and calibration.known_rates([], 1) == rates
    assert not calibration.are_known([], 2)
    for name in ("Q4_K", "Q8_0", "F16", "MXFP4"):
        assert 3e8 < rates.cpu.read_of(name) < 1e12 and 1e8 < rates.cpu.macs_of(name) < 1e14
    assert 1e-8 < rates.cpu.op < 1e-3 and 1e8 < rates.cpu.cache < 1e12
    calibration.rates_file().write_text("no JSON")
    assert calibration.known_rates([], 1) is DEFAULT_RATES


def test_small_working_sets_are_read_from_the_cache():
    cpu = DEFAULT_RATES.cpu
    slow, fast = cpu.read_of("Q4_K", 1e12), cpu.read_of("Q4_K", 1e6)
    assert slow == cpu.read[""] and fast == cpu.fast[""]
    assert slow < cpu.read_of("Q4_K", 1.5 * cpu.fast_bytes) < fast
