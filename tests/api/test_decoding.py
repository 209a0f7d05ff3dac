"""Greedy decoding that goes on by itself: it gives what the careful way gives, and stops for everything else."""

from __future__ import annotations

import os
import shutil
import threading

import pytest

import hybridkern as hk
from hybridkern.kernels import _cpu
from hybridkern.runtime import session as session_module
from hybridkern.runtime.session import Session

PROMPT = [1, 70, 80, 90, 100]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    from tiny import write_tiny

    return write_tiny(tmp_path_factory.mktemp("models") / "long.gguf", "llama", context=1024).path


@pytest.fixture
def model(path):
    with hk.load(path, threads=1, n_ctx=512) as loaded:
        yield loaded


@pytest.fixture
def careful(monkeypatch):
    """Counts the steps that went the careful way."""
    calls = []
    plain = Session.advance_greedy
    monkeypatch.setattr(
        Session, "advance_greedy", lambda self, tokens: calls.append(len(tokens)) or plain(self, tokens)
    )
    return calls


def started(model, n=300, **options):
    return model.generate(PROMPT, max_tokens=n, temperature=0, ignore_eos=True, **options)


def made_by(pieces):
    return [(piece.token_id, piece.logprob, str(piece)) for piece in pieces]


def by_logits(model, n):
    """The same tokens without any greedy step."""
    ids, made = list(PROMPT), []
    with model.session() as session:
        for _ in range(n):
            made.append(int(session.logits(ids, rows=[-1])[0].argmax()))
            ids.append(made[-1])
    return made


def test_it_goes_on_over_pages_and_is_right(model, careful):
    with model.session() as session:
        pieces = list(session.generate(PROMPT, max_tokens=300, temperature=0, ignore_eos=True))
        made = [piece.token_id for piece in pieces]
        assert session.ids == PROMPT + made[:-1]
        assert model.engine.length(session._sequence) == len(session.ids)
    assert made == by_logits(model, 300)
    assert careful[0] == len(PROMPT)
    assert len(careful) <= 4  # the prompt, and each of two pages


def test_a_longrope_model_changes_its_table_in_time(tiny_longrope, careful):
    with hk.load(tiny_longrope, threads=1, n_ctx=64) as model:
        made = [piece.token_id for piece in started(model, 50)]
        assert made == by_logits(model, 50)
    assert 1 < len(careful) <= 4


def test_generators_take_turns(model):
    alone = made_by(started(model, 20))
    a, b = started(model, 20), started(model, 20)
    woven = [(next(a), next(b)) for _ in range(20)]
    assert made_by(x for x, _ in woven) == made_by(y for _, y in woven) == alone


def test_a_fork_in_the_middle_shares_no_page_that_is_written(model):
    alone = made_by(started(model, 40))
    with model.session() as session:
        pieces = session.generate(PROMPT, max_tokens=40, temperature=0, ignore_eos=True)
        made = [next(pieces) for _ in range(10)]
        with session.fork() as other:
            other.logits([*other.ids, 7, 8, 9], rows=[-1])
            made += list(pieces)
            assert other.ids[-3:] == [7, 8, 9]
    assert made_by(made) == alone


def test_a_cancel_between_two_tokens_means_nothing(model):
    alone = made_by(started(model, 20))
    pieces = started(model, 20)
    made = [next(pieces) for _ in range(5)]
    model.engine.cancel()
    assert made_by([*made, *pieces]) == alone


def test_closing_in_the_middle(path):
    model = hk.load(path, threads=1, n_ctx=512)
    pieces = started(model)
    for _ in range(5):
        next(pieces)
    model.close()
    with pytest.raises(hk.HybridKernError, match="closed"):
        next(pieces)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_process_does_not_go_on(model):
    pieces = started(model)
    for _ in range(5):
        next(pieces)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            next(pieces)
        except hk.HybridKernError as error:
            status = 0 if "forked" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    next(pieces)


def test_threads_take_turns(model):
    alone = made_by(started(model, 100))
    made = {}

    def work(i):
        made[i] = made_by(started(model, 100))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(made[i] == alone for i in range(3))


def test_a_file_cut_within_its_last_page(path, tmp_path, monkeypatch, careful):
    """No page is missing, and no step can notice: the size is asked for from time to time, and at the end."""
    for seconds, at_once in ((0.0, True), (3600.0, False)):
        monkeypatch.setattr(session_module, "FILE_CHECK_SECONDS", seconds)
        cut = tmp_path / "cut.gguf"
        shutil.copy(path, cut)
        with hk.load(cut, threads=1, n_ctx=512) as model:
            pieces = started(model, 20)
            for _ in range(3):
                next(pieces)
            os.truncate(cut, cut.stat().st_size - 1)
            careful.clear()
            with pytest.raises(hk.GGUFError, match="cut short"):
                for i, _ in enumerate(pieces):
                    assert i < 16 and not at_once
            assert not careful


def test_the_lock():
    lock, counter = _cpu.Lock(), [0]
    assert lock.acquire()
    assert not lock.acquire(blocking=False)
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()

    def work():
        for _ in range(2000):
            lock.acquire()
            before = counter[0]
            if before % 50 == 0:
                threading.Event().wait(1e-5)  # lets the others in, while the lock is held
            counter[0] = before + 1
            lock.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert counter[0] == 8000
