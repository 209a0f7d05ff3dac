"""What is run over the fake driver: `python programs.py NAME MODEL`."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from typing import Any

import hybridkern as hk
from hybridkern.kernels.cuda.driver import Memory

name, path = sys.argv[1:]
PROMPT = [1, 2, 3, 4, 5]
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


def load(**options: Any) -> hk.Model:
    return hk.load(path, **({"n_gpu_layers": "all", "n_ctx": 700} | options))


def following(ids: list[int], n: int, n_vocab: int) -> list[int]:
    """What the fake model says."""
    ids = list(ids)
    for _ in range(n):
        h = 7
        for token in ids:
            h = (h * 31 + token) & 0xFFFFFFFF
        ids.append(h % n_vocab)
    return ids[-n:]


def check(source: Any, prompt: list[int], n: int, n_vocab: int, **options: Any) -> list[int]:
    made = [p.token_id for p in source.generate(prompt, max_tokens=n, **(GREEDY | options))]
    assert made == following(prompt, n, n_vocab), made
    return made


def tokens() -> None:
    """Every way to come to a token: greedy across pages, long prompts, forks, sampling, logits of many rows."""
    with load() as model:
        v = model.n_vocab
        check(model, PROMPT, 300, v)
        check(model, PROMPT * 60, 20, v)
        check(model, PROMPT, 30, v, temperature=1.0, top_k=1)
        with load(n_gpu_layers=0) as cpu:  # the same draws from the likeliest tokens as from all logits
            assert cpu.engine.n_top == 0 and model.engine.n_top == 256
        options: dict[str, Any] = {"max_tokens": 60, "temperature": 1.5, "seed": 3, "ignore_eos": True}
        few = [(p.token_id, round(p.logprob, 4)) for p in model.generate(PROMPT, top_k=40, min_p=0, **options)]
        bias = {0: 1e-30}  # which the device does not know
        all_ = model.generate(PROMPT, top_k=40, min_p=0, logit_bias=bias, **options)
        assert few == [(p.token_id, round(p.logprob, 4)) for p in all_] and len(set(few)) > 20
        session = model.session()
        prompt = PROMPT * 30
        text = prompt + check(session, prompt, 40, v)
        fork = session.fork()
        check(fork, [*text, 9], 130, v)
        check(session, [*text, 8], 130, v)
        check(fork, [*text, 9], 3, v)
        for count in (1, 8, 9, 31, 33, 255, 257, 512):
            ids = (PROMPT * 103)[:count]
            rows = model.logits(ids).argmax(1).tolist()
            assert rows == [following(ids[: i + 1], 1, v)[0] for i in range(count)], count
        pieces = session.generate(PROMPT, **GREEDY)  # left early: a step is still under way
        for _ in range(5):
            next(pieces)
        check(session, [*PROMPT, 77], 5, v)
        assert sum(model.engine.part.nbytes.values()) == Memory.live
    assert Memory.live == 0


def turns() -> None:
    """Threads share a model, and two models a device."""
    with load() as one, load() as two:

        def work(model: hk.Model, first: int) -> None:
            check(model, [first, 2], 150, model.n_vocab)
            done.append(first)

        done: list[int] = []
        threads = [threading.Thread(target=work, args=((one, two)[i % 2], i + 1)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == 6


def loads() -> None:
    """Nothing is left after a close."""
    for _ in range(20):
        with load() as model:
            check(model, PROMPT, 3, model.n_vocab)
        assert Memory.live == 0
    load()  # and forgotten
    gc.collect()
    load(n_gpu_layers=0).close()
    for _ in range(100):
        time.sleep(0.02)
        if Memory.live == 0:
            return
    raise AssertionError("a model that was forgotten keeps its memory")


def forgotten() -> None:
    """Models that nobody can reach make room for the next one before it is refused."""
    gc.disable()
    for _ in range(8):
        check(load(n_ctx=1 << 17), PROMPT, 3, 336)


def memory() -> None:
    """Too little for a second, large one: the first lives on."""
    with load() as model:
        live = Memory.live
        try:
            load(n_ctx=1 << 20)
        except hk.OutOfMemoryError as error:
            print(error)
        else:
            raise AssertionError("there was enough")
        assert Memory.live == live
        check(model, PROMPT, 9, model.n_vocab)


def view() -> None:
    """Logits may be looked at after the engine has gone."""
    model = load()
    engine = model.engine
    logits = engine.evaluate(engine.new_sequence(), PROMPT)
    model.close()
    assert logits[0].argmax() == following(PROMPT, 1, logits.shape[1])[0]


def interrupt() -> None:
    """A step that does not end: Ctrl-C and cancel come through, and the model can be used."""
    model = load()
    for stop, error in (
        (lambda: os.kill(os.getpid(), signal.SIGINT), KeyboardInterrupt),
        (model.engine.cancel, Exception),
    ):
        os.environ["FAKE_CUDA_SLOW"] = "60000000"
        timer = threading.Timer(0.3, stop)
        begin = time.monotonic()
        timer.start()
        try:
            check(model, PROMPT, 5, model.n_vocab)
            raise AssertionError("it did end")
        except error as caught:
            assert not isinstance(caught, AssertionError)
        assert time.monotonic() - begin < 0.5
        os.environ["FAKE_CUDA_SLOW"] = "0"
    os._exit(0)  # the slots' events lie a minute ahead


def broken() -> None:
    """A step breaks the context: errors say so, closing works."""
    model = load()
    for _ in range(2):
        try:
            check(model, PROMPT, 50, model.n_vocab)
        except hk.KernelError as error:
            assert "new process" in str(error), error
        else:
            raise AssertionError("no error")
    model.close()
    assert Memory.live == 0


globals()[name]()
print("done", flush=True)
