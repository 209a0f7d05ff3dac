"""Ctrl-C at any moment, and a fork at any moment: nothing stays taken, nothing hangs."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time

import pytest

import hybridkern as hk

N_INTERRUPTS = 600
CHILD_SECONDS = 10  # then its alarm ends it


@pytest.fixture
def model(tiny_llama):
    with hk.load(tiny_llama, threads=1, n_ctx=64) as model:
        yield model


def run(model: hk.Model) -> list[str]:
    return list(model.generate("hello world", max_tokens=20, temperature=0, ignore_eos=True))


def in_a_child(work) -> int:
    """The exit status of a child process that calls `work`; negative for the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(CHILD_SECONDS)
        status = 4
        with contextlib.suppress(BaseException):
            status = work()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_moment_leaves_nothing_taken(model):
    expected, rng, n = run(model), random.Random(1), 0

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def overdue() -> None:
        os._exit(70)  # a lock that stayed taken cannot be interrupted here

    watch = threading.Timer(100, overdue)
    watch.daemon = True
    watch.start()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        while n < N_INTERRUPTS:
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 3e-3))
                for _ in range(20):  # not for ever: an interrupt inside of a finaliser goes nowhere
                    run(model)
            except KeyboardInterrupt:
                n += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert not model.turn.taken, f"after {n} interrupts"
            assert not model.engine._turn.taken, f"after {n} interrupts"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        watch.cancel()
    assert run(model) == expected
    model.session().close()
    cache = model.engine._cache
    assert not any(cache.holds(s) for s in range(cache.n_seq))


def test_a_sequence_whose_session_was_not_closed_comes_back(model):
    """Ctrl-C inside `close` or a finaliser leaves a sequence that nobody owns."""
    for _ in range(model.engine._cache.n_seq + 1):
        session = model.session()
        session.logits([1, 2])
        session._sequence = None  # as an interrupted close leaves it
    cache = model.engine._cache
    model.session().close()
    assert cache.free_pages == cache.n_pages


def test_a_child_never_hangs(model):
    """The parent's threads may hold any lock at the moment of the fork; they are not there in the child."""
    ends = threading.Event()

    def work() -> None:
        while not ends.is_set():
            run(model)

    def ask() -> int:
        try:
            model.logits([1, 2])
        except hk.HybridKernError as error:
            return 0 if "forked" in str(error) else 3
        return 2

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert [in_a_child(ask) for _ in range(12)] == [0] * 12
    finally:
        ends.set()
        thread.join()
    assert model.logits([1, 2]).shape == (2, model.n_vocab)


def test_a_child_can_load_the_model_again(model, tiny_llama):
    expected = model.logits([1, 2]).tobytes()

    def again() -> int:
        with hk.load(tiny_llama, threads=1, n_ctx=64) as own:
            return 0 if own.logits([1, 2]).tobytes() == expected else 2

    assert in_a_child(again) == 0


def test_a_waiting_thread_can_be_interrupted(model):
    """Calls queue; one that waits for its turn leaves the queue on Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    model.turn.__enter__()
    try:
        begin = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            model.logits([1])
        assert time.perf_counter() - begin < 5
    finally:
        signal.signal(signal.SIGALRM, before)
        model.turn.__exit__(None, None, None)
    assert model.logits([1]).shape == (1, model.n_vocab)
