"""Perplexity and importance on any placement: a second CPU set pretends to be the GPU, so that nothing may change but
where things are computed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from assignments import RULES, STREAMED

import hybridkern as hk
from hybridkern.gguf import GGUFFile
from hybridkern.kernels.interface import Recorder
from hybridkern.model import LoadedModel
from hybridkern.plan.devices import Gpu
from hybridkern.plan.rates import DEFAULT_RATES
from hybridkern.runtime.cpu_part import CpuPart
from hybridkern.runtime.engine import Engine
from hybridkern.runtime.observing import Observed

TEXT = "the world is in the hello and then it is on and " * 12
PRETENDED = {"cuda0": CpuPart, "cuda1": CpuPart}
BLOCKS = "segment on cuda0: blocks 2 to 3, head"
PLACEMENTS = {  # flags, and what describe() says of them
    "all": (["-ngl", "all"], "all of it on cuda0"),
    "auto": ([], "all of it on cuda0"),
    "blocks": (["-ngl", 3], BLOCKS),
    "tensors": (["-ngl", "all", "-ot", r"ffn_down=CPU"], "cuda0 -> cpu: gated"),
    "feed-forward": (["-ngl", "all", "--n-cpu-ffn", 2], "segment on cpu: block 1 (ffn_gate, ffn_up, ffn_down)"),
    "places": (["--place", "blk.0-1=cpu,blk.2-3=cuda0,head=cuda0"], BLOCKS),
    "caches": (["-ngl", "all", "-nkvo"], "cuda0 -> cpu: q, k"),
    "budget": (["--gpu-memory", 1], "all of it on cpu"),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    from tiny import write_tiny

    return str(write_tiny(tmp_path_factory.mktemp("m") / "m.gguf", "llama", n_layer=4).path)


@pytest.fixture
def pretended(monkeypatch):
    """A GPU that is found, planned for and used; the models that were loaded, with what they said of themselves."""
    from hybridkern.runtime import model_api, planning

    def find(options, pretends):
        gpu = Gpu("cuda0", "pretended", 1 << 34)
        return ([] if options.n_gpu_layers == 0 else [planning._budgeted(gpu, options)]), []

    said = []

    class Told(Engine):
        def __init__(self, *args, **options):
            super().__init__(*args, factories=PRETENDED, **options)
            alone = f"all of it on {next(iter(self.parts))}\n" if len(self.parts) == 1 else ""
            said.append(alone + self.describe())

    monkeypatch.setattr(planning, "find_gpus", find)
    monkeypatch.setattr(planning, "known_rates", lambda *_: DEFAULT_RATES)
    monkeypatch.setattr(planning, "are_known", lambda *_: True)
    monkeypatch.setattr(model_api, "Engine", Told)
    return said


@pytest.mark.parametrize("name", PLACEMENTS)
def test_perplexity_takes_every_flag_of_placement(command, path, pretended, name):
    flags, said = PLACEMENTS[name]
    words = ("perplexity", "-m", path, "-p", TEXT, "-c", 40, "--chunks", 2, "-t", 1, "--json")
    status, want, _ = command(*words, "-ngl", 0)
    assert status == 0
    status, out, err = command(*words, *flags)
    assert status == 0, err
    assert "all of it on cpu" in pretended[0]
    assert said in pretended[1]
    assert json.loads(out) == json.loads(want)


@pytest.mark.parametrize("name", ["all", "blocks", "tensors", "caches"])
def test_importance_is_the_same_on_every_placement(command, path, pretended, tmp_path, name):
    flags, said = PLACEMENTS[name]
    words = ("imatrix", "-m", path, "-p", TEXT, "-c", 40, "--chunks", 2, "-t", 1, "--process-output", "-o")
    assert command(*words, tmp_path / "want", "-ngl", 0)[0] == 0
    status, _, err = command(*words, tmp_path / "got", *flags)
    assert status == 0, err
    assert said in pretended[1]
    assert (tmp_path / "got").read_bytes() == (tmp_path / "want").read_bytes()


def sums_of(model, assignment, steps, **options):
    """Of the same tokens in these steps."""
    observed = Observed(head=True)
    tapped = observed.tap(model)
    ids = np.random.default_rng(1).integers(3, 300, sum(steps))
    with Engine(tapped, assignment=assignment, n_ctx=256, threads=2, n_seq=2, factories=PRETENDED, **options) as e:
        s = e.new_sequence()
        for end, n in zip(np.cumsum(steps), steps, strict=True):
            e.evaluate(s, ids[end - n : end])
        for part in e.parts.values():
            part.collect()
    return observed.sums


@pytest.mark.parametrize("arch", ["llama", "gemma3", "phi3"])
def test_every_rule_and_streamed_blocks(tmp_path, arch):
    """Steps of one token and of many, so that both programs of streamed blocks add to the same sums."""
    from tiny import write_tiny

    path = write_tiny(tmp_path / "m.gguf", arch, n_layer=3, type="Q8_0", context=256).path
    steps = (40, 1, 33, 2, 60)
    with GGUFFile.open(path) as file:
        model = LoadedModel.from_gguf(file)
        want = sums_of(model, None, steps)
        assert all(v[-1] == (sum(steps) if k.startswith("blk.") else len(steps)) for k, v in want.items())
        for name, rule in {**RULES, **STREAMED}.items():
            got = sums_of(model, rule(model), steps)
            assert list(got) == list(want), name
            for key, values in want.items():
                assert np.array_equal(got[key], values), (name, key)


def test_a_plan_and_an_engine_share_the_sums(path):
    """A tapped model is recorded more than once: the sums that are read are those that were added to."""
    observed = Observed()
    with hk.load(path, n_ctx=64, threads=1, tap=observed.tap) as model:
        kept = dict(observed.sums)
        model.loaded.record(Recorder())
        model.logits([1, 2, 3])
    assert all(observed.sums[name] is kept[name] for name in kept)
    observed.check()
