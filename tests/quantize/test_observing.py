"""Importance from running text: against NumPy on the float64 forward pass, and through the commands."""

from __future__ import annotations

import numpy as np
import pytest

import hybridkern as hk
from hybridkern.errors import HybridKernError, KernelError
from hybridkern.gguf import GGUFFile
from hybridkern.kernels.cuda.sizing import Counting
from hybridkern.kernels.interface import Batch, Recorder
from hybridkern.kernels.reference import ReferenceSet
from hybridkern.model import LoadedModel
from hybridkern.quantize import read_importance
from hybridkern.runtime.observing import Observed, observe_text

TEXT = "the world is in the hello and then it is on and " * 12


def observed_here(path, chunks, **options):
    observed = Observed(**options)
    with hk.load(path, n_ctx=64, threads=2, tap=observed.tap) as model:
        observe_text(model, chunks)
    observed.check()
    return observed.sums


@pytest.fixture(params=["llama", "gemma3", "phi3"])
def path(request, tmp_path):
    from tiny import write_tiny

    return write_tiny(tmp_path / "m.gguf", request.param).path


def test_the_sums_are_those_of_the_reference_forward_pass(path):
    with hk.load(path, n_ctx=64, threads=1) as model:
        ids = model.tokenize(TEXT)[:40]
        bos = [model.vocabulary.bos_id] if model.vocabulary.add_bos else ids[:1]
    sums = observed_here(path, [ids], head=True)
    with GGUFFile.open(path) as file:
        loaded, wanted = LoadedModel.from_gguf(file), Observed(head=True)
        recorder = Recorder()
        logits = wanted.tap(loaded).record(recorder)
        reference = ReferenceSet(recorder.ops)
        tokens = np.array([*bos, *ids[1:]], np.int32)
        n = len(tokens)
        reference.run(Batch(tokens, np.arange(n), np.zeros(n, np.int32), np.array([n - 1])))
        assert logits.width == loaded.config.n_vocab
    assert (
        set(sums)
        == set(wanted.sums)
        == {w.name for w in loaded.weights.matrices()} - (set() if loaded.weights.tied else {"token_embd.weight"})
    )
    for name, values in sums.items():
        rows = 1 if name in ("output.weight", loaded.weights.output.name) else n
        assert values[-1] == wanted.sums[name][-1] == rows, name
        assert np.allclose(values, wanted.sums[name], rtol=2e-2, atol=1e-3 * wanted.sums[name][:-1].max()), name


def test_products_of_one_input_are_observed_once(path):
    observed = Observed()
    with GGUFFile.open(path) as file:
        loaded, recorder = LoadedModel.from_gguf(file), Recorder()
        observed.tap(loaded).record(recorder)
        kinds = [op.kind for op in recorder.ops]
        plain = Recorder()
        loaded.record(plain)
    assert [k for k in kinds if k != "observe"] == [op.kind for op in plain.ops]
    assert kinds.count("observe") == 4 * len(loaded.config.blocks)  # q k v, o, gate up, down
    assert loaded.weights.output.name not in observed.sums


def test_the_sums_do_not_depend_on_threads_or_steps(path):
    with hk.load(path, n_ctx=64, threads=1) as model:
        ids = model.tokenize(TEXT)
    observed = Observed()
    with hk.load(path, n_ctx=64, threads=1, n_ubatch=7, tap=observed.tap) as model:
        observe_text(model, [ids[:40], ids[40:80]])
    both = observed_here(path, [ids[:40], ids[40:80]])
    for name, values in observed.sums.items():
        assert values[-1] == 80
        assert np.allclose(values, both[name], rtol=1e-12)


def test_logits_are_the_same_with_taps(path):
    with hk.load(path, n_ctx=64, threads=1) as model:
        ids = model.tokenize(TEXT)[:40]
        plain = model.logits(ids)
    with hk.load(path, n_ctx=64, threads=1, tap=Observed().tap) as model:
        assert np.array_equal(model.logits(ids), plain)


def test_what_was_never_run_is_no_importance(path):
    observed = Observed()
    with hk.load(path, n_ctx=64, threads=1, tap=observed.tap), pytest.raises(HybridKernError, match="never computed"):
        observed.check()
    next(iter(observed.sums.values()))[0] = np.nan
    with pytest.raises(HybridKernError, match="infinite or NaN"):
        observed.check()


@pytest.mark.parametrize("n", [1, 8, 40])
def test_what_a_gpu_observes(path, n):
    """Floats that something has written, in front of the product that takes them; sums of their own, once each."""
    from hybridkern.kernels.cuda.fusion import Fusion

    with GGUFFile.open(path) as file:
        plain, recorder, observed = Recorder(), Recorder(), Observed(head=True)
        loaded = LoadedModel.from_gguf(file)
        loaded.record(plain)
        logits = observed.tap(loaded).record(recorder)
    made = Fusion(recorder.ops, n, [logits]).launches()
    at = [i for i, f in enumerate(made) if f.kind == "observe"]
    assert len(at) == len({id(s) for s in observed.sums.values()}) == 4 * len(loaded.config.blocks) + 1
    for i in at:
        x = made[i].op.out
        product = next(f for f in made[i:] if f.kind == "matmul")
        assert product.op.args[0] is x
        assert product.norm is None
        written = next(f for f in reversed(made[:i]) if x in (f.op.out, f.glu.out if f.glu else None))
        assert "f32" in written.forms or written.kind in ("attend", "matmul")
    with pytest.raises(KernelError, match="observing h takes float64"):
        Counting(n, n).sums(made[at[0]].op.out, np.zeros(3))
    assert not any(f.kind == "observe" for f in Fusion(plain.ops, n).launches())


def test_the_commands(command, tiny_path, tmp_path):
    (tmp_path / "t.txt").write_text(TEXT)
    out = tmp_path / "i.gguf"
    status, text, _ = command("imatrix", "-m", tiny_path, "-f", tmp_path / "t.txt", "-c", 32, "-o", out, "-t", 1)
    assert status == 0
    assert "chunks of 32 tokens" in text
    made = read_importance(out)
    assert made.chunks > 2
    assert made.datasets == (str(tmp_path / "t.txt"),)
    status, _, err = command("quantize", tiny_path, tmp_path / "q.gguf", "Q4_0", "--imatrix", out)
    assert status == 0
    assert "1 of the matrices are not in" in err or "2 of the matrices are not in" in err  # embedding and head
    for words, said in (
        (["-f", tmp_path / "t.txt", "-o", tmp_path / "no" / "i.gguf"], "does not exist"),
        (["-p", "the"], "less than one chunk"),
        ([], "give the text with -f or -p"),
        (["-p", TEXT, "-c", 0], "the size of the chunks"),
    ):
        status, _, err = command("imatrix", "-m", tiny_path, *words)
        assert status == 2
        assert said in err
