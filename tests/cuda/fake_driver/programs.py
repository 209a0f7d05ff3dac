"""What is run over the fake driver: `python programs.py NAME MODEL`."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import hybridkern as hk
from hybridkern.gguf import GGUFFile
from hybridkern.kernels.cuda.device import Device
from hybridkern.kernels.cuda.driver import Memory
from hybridkern.model import LoadedModel
from hybridkern.plan.assignment import Assignment
from hybridkern.plan.rates import DEFAULT_RATES
from hybridkern.runtime import planning
from hybridkern.runtime.engine import Engine
from hybridkern.runtime.observing import Observed

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
        with load(n_gpu_layers=0, device=None) as cpu:  # the same draws from the likeliest tokens as from all logits
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


def streamed() -> None:
    """Every block's weights come from main memory, packed or as they lie in the file; nothing is left behind."""
    registered = ctypes.CDLL("libcuda.so.1").fake_registered
    refused = "FAKE_CUDA_REGISTER" in os.environ
    file = GGUFFile.open(path)
    model = LoadedModel.from_gguf(file)
    names = [w.name for w in model.weights.matrices() if w.name.startswith("blk.")]
    gpu, blocks = "cuda0", range(len(model.kv_specs))
    assignment = Assignment(
        dict.fromkeys(names, "cpu"), (gpu,) * len(blocks), gpu, gpu, 512,
        streamed=dict.fromkeys(blocks, gpu), stream_from=9, stream_depth=2, stream_kept=1,
    )  # fmt: skip

    def make(n_kv_pages: int = 16, repack: bool = True) -> Engine:
        options: dict[str, Any] = {"n_ctx": 700, "n_seq": 4, "n_kv_pages": n_kv_pages, "repack": repack}
        return Engine(model, file, assignment=assignment, **options)

    def check_engine(e: Engine) -> None:
        assert (registered() == 0) == refused
        assert ("could not be registered" in e.describe()) == refused
        assert sum(e.parts[gpu].nbytes.values()) == Memory.live  # type: ignore[attr-defined]
        s, t = e.new_sequence(), e.new_sequence()
        e._stepper._is_torn = True  # as before the first step: the ring is filled for a small one
        assert e.greedy(s, PROMPT)[0] == following(PROMPT, 1, e.n_vocab)[0] and not e._stepper._is_torn
        e.truncate(s, 0)
        for prompt in (PROMPT * 2, PROMPT * 60, PROMPT * 103):
            for sequence in (s, t):
                assert e.greedy(sequence, prompt)[0] == following(prompt, 1, e.n_vocab)[0]
                more = [*prompt, *range(10, 30)]
                assert e.greedy(sequence, more[len(prompt) :])[0] == following(more, 1, e.n_vocab)[0]
                e.truncate(sequence, 0)

    for repack in (True, False):
        with make(repack=repack) as e:
            check_engine(e)
            live, ranges = Memory.live, registered()
            with contextlib.suppress(hk.OutOfMemoryError):
                make(n_kv_pages=1 << 20)
                raise AssertionError("there was enough")
            gc.collect()
            assert (Memory.live, registered()) == (live, ranges)
            check_engine(e)
        assert Memory.live == 0 and registered() == 0
    make()  # and forgotten
    gc.collect()
    e = make()
    check_engine(e)
    e.close()
    assert Memory.live == 0 and registered() == 0


def observed() -> None:
    """What is summed up on the device arrives once, from every program of a whole, a divided and a streamed model."""
    whole, steps = Observed(), (5, 1, 40, 3)
    with load(tap=whole.tap) as model:
        assert model.engine.part.nbytes["observed sums"] > 0  # type: ignore[attr-defined]
        s = model.engine.new_sequence()
        for n in steps:
            model.engine.evaluate(s, (PROMPT * 10)[:n])
        for _ in range(2):
            model.engine.part.collect()
            assert all((v == sum(steps)).all() for v in whole.sums.values())
    file = GGUFFile.open(path)
    some, gpu = Observed(), "cuda0"
    tapped = some.tap(LoadedModel.from_gguf(file))
    names = [w.name for w in tapped.weights.matrices() if w.name.startswith("blk.")]
    blocks = range(len(tapped.kv_specs))
    a = Assignment(
        {n: "cpu" if n.startswith("blk.0.") else gpu for n in names}, (gpu,) * len(blocks), gpu, gpu, 512,
        streamed={0: gpu}, stream_from=9, stream_depth=1,
    )  # fmt: skip
    with Engine(tapped, file, assignment=a, n_ctx=700, n_seq=4, n_kv_pages=16) as e:
        s = e.new_sequence()
        for n in steps:
            e.evaluate(s, (PROMPT * 10)[:n])
        for part in e.parts.values():
            part.collect()
    for name, v in some.sums.items():
        assert v[-1] == sum(steps), name
        assert (v == sum(steps)).all() or name.startswith("blk.0."), name
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
    load(n_gpu_layers=0, device=None).close()
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


def plans() -> None:
    """What the driver gives is what the plan said, to the byte, whatever is fixed by hand."""
    slow = replace(DEFAULT_RATES.cpu, macs={"": 1e6})  # so that streaming gains, even here
    planning.known_rates = lambda *of: replace(DEFAULT_RATES, cpu=slow)
    planning.are_known = lambda *of: True
    rng, streamed = random.Random(5), 0
    devices = ("cpu", "cuda0")
    for i in range(24):
        parts = [f"blk.0={rng.choice(devices)}", f"blk.1.ffn={rng.choice(devices)}", f"kv.1={rng.choice(devices)}"]
        options: dict[str, Any] = {"place": ",".join(rng.sample(parts, rng.randint(0, 3))) or None}
        options |= {"n_gpu_layers": rng.choice([0, 1, 2, 3, "all", "auto"]), "kv_offload": rng.random() < 0.85}
        options |= {
            "n_ubatch": rng.choice([None, 1, 100, 700]),
            "n_ctx": rng.choice([200, 3000]),
            "op_offload": i % 4 != 0,
        }
        with load(**options) as model:
            held = model.plan.device("cuda0")
            planned = {} if held is None else {k: n for k, n in held.memory.items() if k != "CUDA graphs"}
            part = model.engine.parts.get("cuda0")
            found = {} if part is None else {k: n for k, n in part.nbytes.items() if n}
            assert found == planned, (options, found, planned)
            assert Memory.live == sum(found.values())
            streamed += bool(model.plan.assignment.streamed)
    assert Memory.live == 0 and streamed > 1, streamed


def stolen() -> None:
    """Another process takes memory between plan and load."""
    thief: list[Memory] = []
    original = planning.Planner.plan

    def plan(self: planning.Planner) -> Any:
        made = original(self)
        if not thief:
            thief.append(Device.get(0).run(Memory, 80 << 20, "somebody"))
        return made

    planning.Planner.plan = plan  # type: ignore[method-assign]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = load(n_gpu_layers="auto", n_ctx=1 << 18, fit_margin=0)
    assert [1 for w in said if "planning again with the memory that is free now (1 of 3)" in str(w.message)] == [1]
    assert "cpu" in model.plan.assignment.kv
    assert len(list(model.generate(PROMPT, max_tokens=3, **GREEDY))) == 3


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


def engines() -> Iterator[Any]:
    """Engines of divided models whose first cache and head, which make up what the fake model says, are on the GPU."""
    from assignments import CPU, GPU, part_of, ruled

    from hybridkern.gguf import GGUFFile
    from hybridkern.model import LoadedModel
    from hybridkern.runtime.engine import Engine

    file = GGUFFile.open(path)
    model = LoadedModel.from_gguf(file)
    for rule in (
        lambda name: CPU if part_of(name) == "ffn" else GPU,
        lambda name: GPU if name.startswith("blk.0.") else CPU,
        lambda name: CPU if "attn_k" in name or "ffn_up" in name else GPU,
    ):
        assignment = ruled(model, rule, kv=lambda block: (GPU, CPU)[block], head=GPU)
        with Engine(model, file, n_ctx=700, n_seq=4, n_kv_pages=16, assignment=assignment, threads=2) as e:
            assert ("no mapped memory here" in e.describe()) != (os.environ.get("FAKE_CUDA_MAPPED") == "1")
            yield e


def divided() -> None:
    """Inputs, page tables, copies of pages and choices of divided models."""
    for e in engines():
        v = e.n_vocab
        s = e.new_sequence()
        ids = list(PROMPT)
        best, _ = e.greedy(s, ids)
        for _ in range(290):  # across pages
            assert best == following(ids, 1, v)[0]
            ids.append(best)
            best, _ = e.greedy(s, best)
        f = e.fork(s)
        for each, token in ((f, 9), (s, 8)):  # which share a page up to here
            text = [*ids, token, *PROMPT]
            assert e.evaluate(each, text[len(ids) :], "all").argmax(1).tolist() == [
                following(text[: len(ids) + i + 1], 1, v)[0] for i in range(6)
            ]
        e.truncate(f, 100)
        rows = e.evaluate(f, PROMPT * 60, "all").argmax(1).tolist()
        text = ids[:100] + PROMPT * 60
        assert rows == [following(text[: 101 + i], 1, v)[0] for i in range(300)]
        many = e.evaluate(f, PROMPT * 8, "all").argmax(1).tolist()  # more rows than come back to page-locked memory
        text += PROMPT * 8
        assert many == [following(text[: 401 + i], 1, v)[0] for i in range(40)]
        nbytes = sum(sum(p.nbytes.values()) for p in e.parts.values() if p.gpu)
        assert nbytes == Memory.live
        e.free(s)
        e.free(f)
    assert Memory.live == 0


def divided_interrupt() -> None:
    """A GPU that does not end its part of a step: Ctrl-C and cancel come through, and the engine can be used."""
    for e in engines():
        s = e.new_sequence()
        e.greedy(s, PROMPT)
        for stop, error in ((lambda: os.kill(os.getpid(), signal.SIGINT), KeyboardInterrupt), (e.cancel, Exception)):
            os.environ["FAKE_CUDA_SLOW"] = "2000000"
            begin = time.monotonic()
            timer = threading.Timer(0.3, stop)
            timer.start()
            try:
                e.greedy(s, 7)
                raise AssertionError("it did end")
            except error as caught:
                assert not isinstance(caught, AssertionError)
            assert time.monotonic() - begin < 0.5
            os.environ["FAKE_CUDA_SLOW"] = "0"
            assert e.length(s) == 5
        assert e.greedy(s, 7)[0] == following([*PROMPT, 7], 1, e.n_vocab)[0]
        assert time.monotonic() - begin > 1.9  # it waited for what was left behind


def divided_threads() -> None:
    """Divided models at once: one's kernels must not wait for what another one keeps from coming."""
    made = [engines(), engines(), engines()]
    for all_ in zip(*made, strict=True):

        def work(e: Any, done: list[Any]) -> None:
            s, ids = e.new_sequence(), list(PROMPT)
            best, _ = e.greedy(s, ids)
            for _ in range(60):
                assert best == following(ids, 1, e.n_vocab)[0]
                ids.append(best)
                best, _ = e.greedy(s, best)
            done.append(e)

        done: list[Any] = []
        threads = [threading.Thread(target=work, args=(e, done)) for e in all_]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == 3


def divided_mute() -> None:
    """A GPU that computes but never says so is an error in time, again and again, and can be closed."""
    from hybridkern.kernels import _cpu

    _cpu.set_patience(0.4)
    for e in engines():
        s = e.new_sequence()
        for _ in range(2):
            begin = time.monotonic()
            try:
                e.greedy(s, 3)
            except hk.KernelError as error:
                assert "hangs" in str(error), error
            else:
                raise AssertionError("no error")
            assert time.monotonic() - begin < 1
        assert e.length(s) == 0
        assert e.greedy(s, PROMPT * 60)[0] == following(PROMPT * 60, 1, e.n_vocab)[0]  # by copies


def divided_broken() -> None:
    """A launch that fails in the middle of a step is an error, and everything can be closed."""
    made = engines()
    e = next(made)
    s = e.new_sequence()
    for _ in range(2):
        try:
            for _ in range(50):
                e.greedy(s, 3)
        except hk.KernelError as error:
            assert "new process" in str(error), error
        else:
            raise AssertionError("no error")
    e.close()
    assert Memory.live == 0


globals()[name]()
print("done", flush=True)
