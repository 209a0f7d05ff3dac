"""Models divided between the CPU set and a GPU: every split and rule against the float64 reference and the CPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from assignments import RULES, split
from cases import ids_of
from running import batch_of, load, reference
from tiny import ARCHITECTURES, write_tiny

from hybridkern.plan.assignment import Assignment
from hybridkern.runtime.cpu_part import CpuPart
from hybridkern.runtime.engine import Cancelled, Engine

COUNTS = (1, 2, 31, 32, 33, 255, 257, 512)
FORMATS = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
IDS = ids_of(600)
Make = Callable[..., Engine]


class Poisoned(Engine):
    """An engine whose buffers are filled with NaN bytes on all devices before every call."""

    def poison(self) -> None:
        for part in self.parts.values():
            if isinstance(part, CpuPart):
                part.poison()
                continue
            holdings = part._holdings  # type: ignore[attr-defined]
            for b, (at, stride) in holdings.place._buffers.items():
                rows = holdings.max_rows if b.rows == "tokens" else holdings.max_outputs
                holdings.native.fill(at, 0xFF, 4 * rows * stride)

    def evaluate(self, *args: Any, **options: Any) -> Any:
        self.poison()
        return super().evaluate(*args, **options)


@pytest.fixture
def divided(device: Any) -> Iterator[Make]:
    """divided(model, assignment, **options) -> an engine; a second GPU is played by the CPU set."""
    made: list[Engine] = []

    def make(model: Any, assignment: Assignment | None, **options: Any) -> Engine:
        options = {"n_ctx": 1024, "n_seq": 4, "n_kv_pages": 40, "factories": {"cuda1": CpuPart}, "threads": 2} | options
        made.append(Poisoned(model, assignment=assignment, **options))
        made[-1]._cache.poison()
        return made[-1]

    yield make
    for e in made:
        e.close()


def worst(e: Engine, want: np.ndarray, counts: tuple[int, ...] = (1, 2, 9, 33, 140)) -> float:
    """Largest error of prompts, twice, of a token and of a choice behind them."""
    found = 0.0
    for n in counts:
        s = e.new_sequence()
        for _ in range(2):
            found = max(found, float(np.abs(e.evaluate(s, IDS[:n], "all") - want[:n]).max()))
            e.truncate(s, 0)
        e.evaluate(s, IDS[:n], "none")
        row = e.evaluate(s, IDS[n : n + 1])[0].copy()
        found = max(found, float(np.abs(row - want[n]).max()))
        e.truncate(s, n)
        best, logprob = e.greedy(s, int(IDS[n]))
        assert best == row.argmax()
        shifted = row.astype(np.float64) - row.max()
        assert abs(logprob + np.log(np.exp(shifted).sum())) <= 1e-4
        e.free(s)
    return found


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_split(divided: Make, tmp_path: Path, arch: str) -> None:
    model = load(write_tiny(tmp_path / "t.gguf", arch, n_layer=3, context=1024, tied="gemma" in arch).path)
    want = reference(model).run(batch_of(IDS[:141]))
    for n in range(5):
        error = worst(divided(model, split(model, n)), want)
        print(arch, n, error)
        assert error <= 2e-2


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("arch", ["llama", "gemma3", "phi3"])
def test_every_rule(divided: Make, tmp_path: Path, arch: str, rule: str) -> None:
    model = load(write_tiny(tmp_path / "t.gguf", arch, n_layer=3, context=1024).path)
    want = reference(model).run(batch_of(IDS[:141]))
    assert worst(divided(model, RULES[rule](model)), want) <= 2e-2


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format(divided: Make, tmp_path: Path, kind: str) -> None:
    wide = {"n_embd": 256, "n_ff": 256, "n_layer": 3}
    model = load(write_tiny(tmp_path / "t.gguf", "llama", type=kind, context=1024, **wide).path)
    alone = divided(model, None)
    want = alone.evaluate(alone.new_sequence(), IDS[:100], "all")
    for name in ("ffn_up and attn_k on the CPU", "every second block on the GPU"):
        e = divided(model, RULES[name](model))
        for step in (100, 8, 1):
            s = e.new_sequence()
            n = 100 if step > 1 else 20
            got = [e.evaluate(s, IDS[i : min(n, i + step)], "all").copy() for i in range(0, n, step)]
            error = np.abs(np.concatenate(got) - want[: sum(map(len, got))])
            assert error.max() <= (0.02 if kind in ("F16", "BF16") else 0.4) and error.mean() <= 0.03
            e.free(s)


def test_token_counts_and_a_second_request(divided: Make, tmp_path: Path) -> None:
    model = load(write_tiny(tmp_path / "t.gguf", "llama", n_layer=3, context=1024).path)
    want = reference(model).run(batch_of(IDS[:513]))
    for name in ("ffn of one block on the CPU", "caches on the CPU"):
        assert worst(divided(model, RULES[name](model)), want, COUNTS) <= 2e-2


@pytest.mark.parametrize("rule", ["ffn on the CPU", "attn_v and ffn_gate on the GPU", "three devices within a block"])
def test_mapped_memory_and_copies_give_the_same_bits(
    divided: Make, tmp_path: Path, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(write_tiny(tmp_path / "t.gguf", "llama", type="Q8_0", n_layer=3, context=1024).path)
    e = divided(model, RULES[rule](model))
    assert "through mapped memory" in e.describe()
    monkeypatch.setattr(_gpu(e), "mapped", False)
    other = divided(model, RULES[rule](model))
    assert "no mapped memory here" in other.describe()
    made = []
    for each in (e, other):
        s = each.new_sequence()
        rows = [each.evaluate(s, IDS[i : i + n], "all").copy() for i, n in ((0, 1), (1, 1), (2, 7), (9, 60), (69, 1))]
        made.append(np.concatenate(rows).tobytes())
    assert made[0] == made[1]


def _gpu(e: Engine) -> Any:
    return next(p for p in e.parts.values() if p.gpu)._set.device  # type: ignore[attr-defined]


def test_interleaved_sequences_forks_and_truncations(divided: Make, tmp_path: Path) -> None:
    model = load(write_tiny(tmp_path / "t.gguf", "qwen3", n_layer=3, context=1024).path)
    a, b = ids_of(200, 1), ids_of(200, 2)
    yardstick = {1: reference(model).run(batch_of(a)), 2: reference(model).run(batch_of(b))}
    for assignment in (split(model, 2), RULES["every second cache on the GPU"](model)):
        e = divided(model, assignment)
        s, t = e.new_sequence(), e.new_sequence()
        for i in range(0, 200, 40):
            got = e.evaluate_many([(s, a[i : i + 40]), (t, b[i : i + 40])])
            assert np.abs(got[0] - yardstick[1][i + 39]).max() <= 2e-2
            assert np.abs(got[1] - yardstick[2][i + 39]).max() <= 2e-2
        e.truncate(s, 150)
        f = e.fork(s)
        mixed = reference(model).run(batch_of(np.concatenate([a[:150], b[:30]])))
        assert np.abs(e.evaluate(f, b[:30], "all") - mixed[150:]).max() <= 2e-2
        assert np.abs(e.evaluate(s, a[150:], "all") - yardstick[1][150:]).max() <= 2e-2
        for each in (s, t, f):
            e.free(each)
        assert e._cache.free_pages == e._cache.n_pages


def test_a_cancelled_step_leaves_the_engine_usable(divided: Make, tmp_path: Path) -> None:
    model = load(write_tiny(tmp_path / "t.gguf", "llama", n_layer=3, context=1024).path)
    for rule in ("ffn on the CPU", "every second block on the GPU"):
        e = divided(model, RULES[rule](model))
        s = e.new_sequence()
        want = e.evaluate(s, IDS[:300]).copy()
        cancelled = 0
        for i in range(40):
            e.truncate(s, 0)
            timer = threading.Timer(0.0003 * (i % 20), e.cancel)
            timer.start()
            begin = time.monotonic()
            try:
                for at in range(0, 300, 1 if i % 2 else 150):
                    e.evaluate(s, IDS[at : at + (1 if i % 2 else 150)], "none")
                    if at > 40:
                        break
            except Cancelled:
                cancelled += 1
                assert time.monotonic() - begin < 0.5
            timer.join()
        assert cancelled
        e.truncate(s, 0)
        assert np.array_equal(e.evaluate(s, IDS[:300]), want)


def test_two_divided_models_at_once(divided: Make, tmp_path: Path) -> None:
    model = load(write_tiny(tmp_path / "t.gguf", "llama", n_layer=3, context=1024).path)
    engines = [divided(model, RULES[r](model)) for r in ("ffn on the CPU", "caches on the CPU", "ffn on the CPU")]
    wants, errors = [], []
    for e in engines:
        s = e.new_sequence()
        wants.append([e.greedy(s, int(t))[0] for t in IDS[:60]])
        e.truncate(s, 0)

    def work(e: Engine, want: list[int]) -> None:
        for _ in range(3):
            if [e.greedy(0, int(t))[0] for t in IDS[:60]] != want:
                errors.append(want)
            e.truncate(0, 0)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(engines, wants, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_memory_is_what_is_said_and_comes_back(divided: Make, tmp_path: Path) -> None:
    from hybridkern.kernels.cuda.driver import Memory

    model = load(write_tiny(tmp_path / "t.gguf", "llama", n_layer=3).path)
    before = Memory.live
    for _ in range(10):
        e = divided(model, RULES["ffn on the CPU"](model), n_ctx=256)
        assert e.part.nbytes and sum(e.part.nbytes.values()) == Memory.live - before  # type: ignore[attr-defined]
        e.greedy(e.new_sequence(), [1, 2, 3])
        e.close()
        assert Memory.live == before
