"""The search, on machines whose speed is a formula and whose clock is counted."""

from __future__ import annotations

import pytest

from hybridkern.errors import OutOfMemoryError
from hybridkern.measure.search import GAIN, Choice, Space, Trial, search, thread_numbers, ubatches_for

START = Choice(8, 8, 512)


class Machine:
    """decode, prefill: tokens a second of a choice; a load takes 5 s, a measurement 1 s."""

    def __init__(self, decode, prefill, longest: int = 4096) -> None:
        self.decode, self.prefill, self.longest = decode, prefill, longest
        self.now, self.loads, self.tried = 0.0, 0, []
        self._loaded = None

    def clock(self) -> float:
        return self.now

    def __call__(self, choice: Choice, again: bool) -> Trial:
        if self._loaded != (choice.n_ubatch, choice.placement):
            self.now, self.loads = self.now + 5, self.loads + 1
            self._loaded = choice.n_ubatch, choice.placement
        self.now += 1
        self.tried.append(choice)
        rates = self.prefill(choice), self.decode(choice)
        return Trial(choice, *rates, longest=self.longest) if all(rates) else Trial(choice, error="no memory")


def machine(**best) -> Machine:
    """Fastest at some numbers, slower the further away."""
    wanted = {"threads": 8, "threads_batch": 8, "n_ubatch": 512} | best

    def near(value: int, name: str) -> float:
        return min(value, wanted[name]) / max(value, wanted[name])

    return Machine(
        lambda c: 50 * near(c.threads, "threads"),
        lambda c: 1000 * near(c.threads_batch, "threads_batch") * near(c.n_ubatch, "n_ubatch"),
    )


def space(**named) -> Space:
    values = {"threads": thread_numbers(8, 16), "ubatches": ubatches_for(2048, 4096, 512)} | named
    return Space(**values)


def run(m: Machine, s: Space | None = None, budget: float = 1e9):
    return search(START, s or space(), m, budget, m.clock)


def test_numbers_to_try():
    assert thread_numbers(8, 16) == [1, 2, 4, 6, 7, 8, 12, 16]
    assert thread_numbers(1, 1) == [1] and thread_numbers(2, 2) == [1, 2]
    assert ubatches_for(2048, 8192, 512) == [64, 128, 256, 512, 1024, 2048]
    assert ubatches_for(2048, 300, 300) == [64, 128, 256, 300]


def test_a_request_is_what_the_plan_makes_least():
    assert Trial(START, 512, 256).seconds == pytest.approx(1 + 1 + 0.1 * 4)
    assert Trial(START, 512, 256, 2048).seconds == pytest.approx(1 + 1 + 0.1)
    assert Trial(START, error="x").seconds == float("inf")


def test_the_best_numbers_are_found():
    found = run(machine(threads=4, threads_batch=16, n_ubatch=2048))
    assert found.winner.choice == Choice(4, 16, 2048) and found.start.choice == START and found.complete
    assert found.winner.choice.flags() == "-t 4 -tb 16 -ub 2048"
    assert len({t.choice for t in found.trials}) == len(found.trials)
    found = run(machine(threads=12, n_ubatch=64))
    assert found.winner.choice == Choice(12, 8, 64)


def test_threads_need_no_load():
    m = machine(threads=1, threads_batch=1)
    found = search(START, space(ubatches=[512]), m, 1e9, m.clock)
    assert found.winner.choice == Choice(1, 1, 512) and m.loads == 1


def test_where_nothing_is_better_it_stays():
    m = machine()
    found = run(m)
    assert found.winner is found.start and found.winner.choice == START
    assert m.tried.count(START) == 1


def test_a_gain_that_is_noise_does_not_count():
    def nearly(choice: Choice) -> float:
        return 50 * (1 + 0.9 * GAIN * (choice.threads == 7))

    assert run(Machine(nearly, lambda c: 1e9)).winner.choice == START
    # 2 % are, and so are gains that vanish when they are measured again.
    assert run(Machine(lambda c: 50 + 3 * (c.threads == 7), lambda c: 1e9)).winner.choice.threads == 7
    asked = []

    def vanishing(choice: Choice) -> float:
        asked.append(choice)
        return 50 + 20 * (choice.threads == 7 and asked.count(choice) == 1)

    found = run(Machine(vanishing, lambda c: 1e9), space(ubatches=[512]))
    assert asked.count(Choice(7, 8, 512)) == 2 and found.winner.choice == START


def test_placements_are_tried_in_order_and_what_does_not_fit_is_told():
    rates = {(None, 0): 50, (20, 0): 60, ("all", 0): 0, ("all", 4): 70, (0, 0): 10}
    m = Machine(lambda c: rates[c.placement], lambda c: 1000)
    found = run(m, space(placements=[("all", 0), (20, 0), ("all", 4), (0, 0)], threads=[8]))
    assert found.winner.choice == Choice(8, 8, 512, "all", 4)
    assert found.winner.choice.flags() == "-t 8 -ub 512 -ngl all --n-cpu-ffn 4"
    assert [t.choice for t in found.trials if t.error] == [Choice(8, 8, 512, "all")]
    order = [c.placement for c in m.tried[:5]]
    assert order == [(None, 0), ("all", 0), (20, 0), ("all", 4), (0, 0)]


def test_steps_longer_than_the_longest_prompt_are_not_tried():
    m = machine(n_ubatch=2048)
    m.longest = 512
    run(m)
    assert max(c.n_ubatch for c in m.tried) == 512
    m = machine(n_ubatch=2048)
    m.longest = 600
    run(m)
    assert max(c.n_ubatch for c in m.tried) == 1024  # which computes the prompt in one step, as longer ones would


@pytest.mark.parametrize("budget", [0.5, 10, 20, 30, 60, 120])
def test_the_budget_is_kept(budget):
    m = machine(threads=1, threads_batch=1, n_ubatch=64)
    found = run(m, budget=budget)
    assert m.now <= max(6, budget)  # the first trial is made in any case
    assert found.winner.seconds <= found.start.seconds
    assert found.complete == (budget >= 120)
    if budget < 6:
        assert [t.choice for t in found.trials] == [START]


def test_errors_of_the_first_trial_are_raised():
    def fails(choice: Choice, again: bool) -> Trial:
        raise OutOfMemoryError("no memory")

    with pytest.raises(OutOfMemoryError):
        search(START, space(), fails, 60)
