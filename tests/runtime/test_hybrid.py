"""Divided models: two CPU sets that pretend to be two devices, each with memory of its own, full of NaN bytes.

What a device reads without having computed or received it is NaN, and what crosses too late or is overwritten too early
changes bits: the results are those of the undivided model, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from assignments import CPU, GPU, RULES, part_of, ruled, split
from running import batch_of, reference
from tiny import ARCHITECTURES, write_tiny

import hybridkern as hk
from hybridkern.errors import HybridKernError
from hybridkern.kernels.interface import Batch
from hybridkern.model import LoadedModel
from hybridkern.plan.assignment import Assignment
from hybridkern.runtime.cpu_part import CpuPart
from hybridkern.runtime.engine import Engine
from hybridkern.runtime.stepper import Stepper

IDS = np.random.default_rng(1).integers(3, 300, 700)
COUNTS = (1, 2, 31, 32, 33, 255, 257, 512)
PRETENDED = {GPU: CpuPart, "cuda1": CpuPart}
FORMATS = (
    "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
    "MXFP4",
)  # fmt: skip
Make = Callable[..., Engine]


class Poisoned(Engine):
    """An engine whose buffers are filled with NaN bytes before every step."""

    def poison(self) -> None:
        self._cache.poison()
        for part in self.parts.values():
            part.poison()  # type: ignore[attr-defined]

    def evaluate(self, *args: Any, **options: Any) -> Any:
        self.poison()
        return super().evaluate(*args, **options)

    def step(self, batch: Batch) -> Any:
        self.poison()
        return super().step(batch)

    def greedy(self, *args: Any, **options: Any) -> Any:
        self.poison()
        return super().greedy(*args, **options)


@pytest.fixture
def divided() -> Iterator[Make]:
    """divided(model, assignment, **options) -> an engine over pretended devices."""
    made: list[Engine] = []

    def make(model: LoadedModel, assignment: Assignment | None, **options: Any) -> Engine:
        options = {"n_ctx": 1024, "threads": 2, "n_seq": 4, "factories": PRETENDED} | options
        made.append(Poisoned(model, assignment=assignment, **options))
        return made[-1]

    yield make
    for e in made:
        e.close()


def requests(e: Engine) -> bytes:
    """Results of prompts of every length, twice, of a token behind them, of a choice, and of a common step."""
    out = []
    for n in (1, 2, 33, 140):
        s = e.new_sequence()
        for _ in range(2):
            out.append(e.evaluate(s, IDS[:n], "all").copy())
            e.truncate(s, 0)
        e.evaluate(s, IDS[:n], "none")
        out.append(e.evaluate(s, IDS[n : n + 1]).copy())
        best, logprob = e.greedy(s, int(IDS[n + 1]))
        out.append(np.array([best, logprob], np.float32))
        out.append(np.array(e.greedy(s, IDS[:5].tolist()), np.float32))
        e.free(s)
    a, b = e.new_sequence(), e.new_sequence()
    out.append(e.evaluate_many([(a, IDS[:40]), (b, IDS[50:57])]))
    assert all(np.isfinite(x).all() for x in out)
    return b"".join(x.tobytes() for x in out)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_split(tiny: Any, divided: Make, arch: str) -> None:
    model = tiny(arch, type="Q8_0", n_layer=3, context=1024, tied=arch in ("gemma2", "gemma3"))
    want = requests(divided(model, None))
    for n in range(5):
        assert requests(divided(model, split(model, n))) == want, n


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("arch", ["llama", "gemma3", "phi3"])
def test_every_rule(tiny: Any, divided: Make, arch: str, rule: str) -> None:
    model = tiny(arch, type="Q4_K", n_layer=3, context=1024)
    assert requests(divided(model, RULES[rule](model))) == requests(divided(model, None))


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format(tiny: Any, divided: Make, kind: str) -> None:
    model = tiny("llama", type=kind, context=1024)
    e, d = divided(model, None), divided(model, RULES["ffn_up and attn_k on the CPU"](model))
    want = e.evaluate(e.new_sequence(), IDS[:40], "all")
    assert d.evaluate(d.new_sequence(), IDS[:40], "all").tobytes() == want.tobytes()


@pytest.mark.parametrize("rule", ["ffn on the CPU", "caches on the CPU", "three devices within a block"])
def test_float_models_equal_the_reference(tiny: Any, divided: Make, rule: str) -> None:
    for arch in ARCHITECTURES:
        model = tiny(arch, n_layer=3, context=1024)
        want = reference(model).run(batch_of(IDS[:60]))
        e = divided(model, RULES[rule](model), kv_type="f32")
        assert np.abs(e.evaluate(e.new_sequence(), IDS[:60], "all") - want).max() <= 1e-4


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("ubatch", [64, 512])
def test_token_counts_and_a_second_request(tiny: Any, divided: Make, n: int, ubatch: int) -> None:
    model = tiny("llama", type="Q4_K", n_layer=3, context=1024)
    want = divided(model, None)
    whole = want.evaluate(want.new_sequence(), IDS[:520], "all")
    e = divided(model, RULES["ffn of one block on the CPU"](model), n_ubatch=ubatch, threads=3)
    s = e.new_sequence()
    for _ in range(2):
        assert e.evaluate(s, IDS[:n], "all").tobytes() == whole[:n].tobytes()
        assert e.evaluate(s, IDS[n : n + 3], "all").tobytes() == whole[n : n + 3].tobytes()
        e.truncate(s, 0)


def test_interleaved_sequences_forks_and_truncations(tiny: Any, divided: Make) -> None:
    model = tiny("qwen3", type="Q8_0", n_layer=3, context=1024)
    made = []
    for assignment in (None, split(model, 2), RULES["every second cache on the GPU"](model)):
        e, rows = divided(model, assignment), []
        a, b = e.new_sequence(), e.new_sequence()
        for at in range(0, 195, 13):
            tokens = np.concatenate([IDS[at : at + 13], IDS[200 + at : 213 + at]])
            positions = np.tile(np.arange(at, at + 13), 2)
            rows.append(e.step(Batch(tokens, positions, np.repeat([a, b], 13), np.arange(26))).copy())
        e.truncate(a, 150)
        f = e.fork(a)
        rows.append(e.evaluate(f, IDS[400:460], "all"))
        rows.append(e.evaluate(a, IDS[150:200], "all"))
        e.truncate(f, 129)
        rows.append(e.evaluate(f, IDS[500:503]).copy())
        for each in (a, b, f):
            e.free(each)
        assert e._cache.free_pages == e._cache.n_pages
        made.append(np.concatenate(rows).tobytes())
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0", "f32"])
def test_types_of_caches(tiny: Any, divided: Make, kv_type: str) -> None:
    model = tiny("llama", n_embd=128, n_head=4, n_head_kv=2, head_dim=32, n_layer=3, context=1024)
    whole, e = divided(model, None, kv_type=kv_type), divided(model, split(model, 2), kv_type=kv_type)
    want = whole.evaluate(whole.new_sequence(), IDS[:200], "all")
    assert e.evaluate(e.new_sequence(), IDS[:200], "all").tobytes() == want.tobytes()


def test_rotary_variants(tiny: Any, divided: Make) -> None:
    model = tiny("phi3", scaling="longrope", n_layer=3, context=256)
    whole, e = divided(model, None, n_ctx=256), divided(model, split(model, 2), n_ctx=256)
    for variant in (0, 1):
        want = whole.evaluate(whole.new_sequence(), IDS[:90], "all", variant=variant)
        got = e.evaluate(e.new_sequence(), IDS[:90], "all", variant=variant)
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_large_crossings_are_copied_by_all_threads(tiny: Any, divided: Make, threads: int) -> None:
    model = tiny("llama", type="Q8_0", n_embd=512, n_head=4, n_head_kv=4, n_layer=2, context=1024)
    whole, e = divided(model, None), divided(model, split(model, 2), threads=threads)
    want = whole.evaluate(whole.new_sequence(), IDS[:300])
    assert e.evaluate(e.new_sequence(), IDS[:300]).tobytes() == want.tobytes()


def test_what_was_not_received_is_not_there(tiny: Any, divided: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other tests would see a transfer that is missing."""
    model = tiny("llama", type="Q8_0", n_layer=3)
    monkeypatch.setattr("hybridkern.plan.division._Emission._provide", lambda self, i, device: None)
    e = divided(model, split(model, 2), n_ctx=256)
    assert not np.isfinite(e.evaluate(e.new_sequence(), IDS[:9], "all")).any()


def test_a_weight_that_is_assigned_nowhere_is_an_error(tiny: Any, divided: Make) -> None:
    model = tiny("llama")
    bad = split(model, 1)
    tensors = {k: v for k, v in bad.tensors.items() if k != "blk.1.ffn_up.weight"}
    with pytest.raises(HybridKernError, match=r"blk\.1\.ffn_up\.weight"):
        divided(model, Assignment(tensors, bad.kv, CPU, CPU, 512))


def test_a_device_that_does_not_exist_is_an_error(tiny: Any, divided: Make) -> None:
    model = tiny("llama")
    with pytest.raises(HybridKernError, match="gpu7"):
        divided(model, split(model, 1, device="gpu7"))


def test_generation_takes_one_call_a_token(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The careful way only where a page begins; the tokens are those of the undivided model."""
    path = write_tiny(tmp_path / "t.gguf", "llama", type="Q8_0", n_layer=3, context=1024).path
    options: dict[str, Any] = {"max_tokens": 300, "temperature": 0, "ignore_eos": True}
    with hk.load(path) as model:
        want = [(p.token_id, p.logprob) for p in model.generate([5, 6, 7], **options)]
    careful: list[int] = []
    decode = Stepper.decode
    monkeypatch.setattr(Stepper, "decode", lambda self, *a: (careful.append(1), decode(self, *a))[1])

    def engine(model: LoadedModel, *args: Any, **named: Any) -> Engine:
        return Engine(model, *args, **named, assignment=split(model, 2), factories=PRETENDED)

    monkeypatch.setattr("hybridkern.runtime.model_api.Engine", engine)
    with hk.load(path) as model:
        assert "segment on cuda0" in model.describe()
        assert [(p.token_id, p.logprob) for p in model.generate([5, 6, 7], **options)] == want
    assert 1 <= len(careful) <= 6


def test_description_names_segments_and_crossings(tiny: Any, divided: Make) -> None:
    model = tiny("llama", type="Q8_0", n_layer=4)
    said = divided(model, split(model, 3)).describe()
    assert "segment on cpu: embedding, blocks 0 to 1" in said
    assert "cpu -> cuda0: x, 256 bytes for a token" in said
    assert "segment on cuda0: blocks 2 to 3, head" in said
    said = divided(model, ruled(model, lambda n: CPU if part_of(n) == "ffn" else GPU)).describe()
    assert "block 3 (ffn_gate, ffn_up, ffn_down)" in said


def test_progress_counts_the_weights_of_all_parts(tiny: Any, divided: Make) -> None:
    model = tiny("llama", type="Q8_0", n_layer=4)
    told: list[tuple[int, int]] = []
    divided(model, split(model, 3), progress=lambda done, total: told.append((done, total)))
    assert len({total for _, total in told}) == 1 and told[-1][0] == told[-1][1]
    assert [done for done, _ in told] == sorted(done for done, _ in told)
