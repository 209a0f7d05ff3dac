"""Perplexity and KL divergence, against NumPy on the same logits, and against an independent engine's numbers."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

import hybridkern as hk
from hybridkern.runtime.logit_base import LogitBase, LogitWriter, base_rows
from hybridkern.runtime.perplexity import cut, measure

TEXT = "the world is in the hello and then it is on and " * 12


@pytest.fixture(scope="module")
def model(tiny_path):
    with hk.load(tiny_path, n_ctx=64, threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def other(tiny_path, tmp_path_factory):
    """The same model with coarser weights."""
    from hybridkern.cli.main import main

    path = tmp_path_factory.mktemp("other") / "q4.gguf"
    assert main(["quantize", tiny_path, str(path), "Q4_0"]) == 0
    return path


def log_softmax(x):
    x = x.astype(np.float64)
    return x - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)) - x.max(1, keepdims=True)


def by_hand(model, chunks):
    """Negative log-likelihoods of the second halves, and all log-probabilities there."""
    nll, logs = [], []
    for chunk in chunks:
        ids = [model.vocabulary.bos_id, *chunk[1:]]
        p = log_softmax(model.logits(ids))
        rows = range(len(ids) // 2, len(ids) - 1)
        nll += [-p[i, ids[i + 1]] for i in rows]
        logs += [p[i] for i in rows]
    return np.array(nll), np.array(logs)


def test_perplexity_is_that_of_the_second_halves(model, monkeypatch):
    chunks = cut(model.tokenize(TEXT), 40, 3)
    assert [len(c) for c in chunks] == [40] * 3
    assert model.vocabulary.add_bos
    nll, _ = by_hand(model, chunks)
    heard = []
    score = measure(model, chunks, heard=lambda done, so_far: heard.append((done, len(so_far.nll))))
    assert np.allclose(score.nll, nll, atol=2e-6)
    assert heard == [(1, 19), (2, 38), (3, 57)]
    ppl, error = score.perplexity
    assert ppl == pytest.approx(np.exp(nll.mean()), rel=1e-6)
    assert error == pytest.approx(ppl * nll.std() / np.sqrt(len(nll) - 1), rel=1e-5)
    monkeypatch.setattr("hybridkern.runtime.perplexity._LOGIT_BYTES", 7 * 4 * model.n_vocab)  # seven rows at a time
    assert np.allclose(measure(model, chunks).nll, nll, atol=2e-6)


def test_the_divergence_from_a_base(model, other, tmp_path):
    chunks = cut(model.tokenize(TEXT), 40, 3)
    with LogitWriter(tmp_path / "base", chunks, model.n_vocab) as save:
        measure(model, chunks, save=save)
    base = LogitBase.open(tmp_path / "base")
    assert base.chunks == chunks
    _, p = by_hand(model, chunks)
    stored = np.concatenate([base_rows(base, i, 0, 19) for i in range(3)])
    assert np.abs(stored - p).max() <= 16 / 65535  # the steps of the file
    itself = measure(model, chunks, base=base)
    assert np.mean(itself.kl) < 1e-6
    assert all(itself.same)
    with hk.load(other, n_ctx=64, threads=1) as coarse:
        nll, q = by_hand(coarse, chunks)
        score = measure(coarse, chunks, base=base)
    kl = (np.exp(p) * (p - q)).sum(1)
    assert kl.mean() > 1e-3
    assert np.allclose(score.kl, kl, atol=3e-4)
    assert np.mean(score.same) == pytest.approx(np.mean(p.argmax(1) == q.argmax(1)), abs=0.04)
    assert np.allclose(score.nll, nll, atol=2e-6)
    tokens = np.concatenate([c[21:] for c in chunks])
    at = np.arange(len(tokens)), tokens
    assert np.allclose(score.gain, np.exp(q[at]) - np.exp(p[at]), atol=1e-3)


def test_the_file_has_the_layout_that_others_read(tmp_path):
    """Read back by hand: a row's scale and least log-probability, then codes; nothing below e^-16 of the likeliest."""
    logits = np.array([[0.0, -1.0, -30.0, 2.0, 1.5]], np.float32)
    with LogitWriter(tmp_path / "f", [[0, 1, 2, 3, 4, 0, 1, 2]], 5) as out:
        out.add(logits)
    data = (tmp_path / "f").read_bytes()
    assert data[:8] == b"_logits_"
    assert struct.unpack_from("<Iii", data, 8) == (8, 5, 1)
    assert struct.unpack_from("<8i", data, 20) == (0, 1, 2, 3, 4, 0, 1, 2)
    scale, least = struct.unpack_from("<ff", data, 52)
    codes = np.frombuffer(data, "<u2", 5, 60)
    assert len(data) == 60 + 2 * 6
    wanted = np.maximum(log_softmax(np.maximum(logits, -14.0)), -20)[0]
    assert np.abs(least + scale * codes - wanted).max() < 2e-4


def test_the_command(command, tiny_path, other, tmp_path):
    (tmp_path / "t.txt").write_text(TEXT)
    words = ("perplexity", "-m", tiny_path, "-t", 1, "-c", 32)
    text = ("-f", tmp_path / "t.txt", "--chunks", 4)
    status, out, _ = command(*words, *text, "--json", "--save-logits", tmp_path / "base")
    assert status == 0
    record = json.loads(out)
    assert (record["chunks"], record["n_ctx"], record["scored"]) == (4, 32, 60)
    status, out, _ = command(*words, *text)
    assert out.startswith(f"perplexity {record['perplexity']:.4f} +/- {record['error']:.4f}  (4 chunks of 32 tokens")
    status, out, _ = command("perplexity", "-m", other, "-t", 1, "--kl-base", tmp_path / "base", "--json")
    compared = json.loads(out)
    assert compared["base"]["perplexity"] == pytest.approx(record["perplexity"], rel=1e-3)
    assert compared["base"]["kl"] > 1e-3
    assert compared["base"]["log_ratio"] == pytest.approx(
        np.log(compared["perplexity"] / record["perplexity"]), abs=2e-3
    )
    status, out, _ = command("perplexity", "-m", other, "-t", 1, "--kl-base", tmp_path / "base", "--chunks", 2)
    assert status == 0
    assert "same likeliest token" in out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base", "t.txt"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give the text with -f or -p"),
        (["-p", "the world"], "less than one chunk of 512"),
        (["-p", TEXT, "-c", "4"], "at least 8"),
        (["-p", TEXT, "-c", "0"], "-c 0: the size of the chunks"),
        (["-f", "{here}/none"], "none"),
        (["-p", TEXT, "-f", "x"], "give one of them"),
        (["--kl-base", "{here}/none"], "cannot be opened"),
        (["--kl-base", "{here}/short"], "is no file of predictions"),
        (["--kl-base", "{here}/cut"], "cut short or damaged"),
        (["--kl-base", "{here}/small"], "made with 5 tokens, but the model has 336"),
        (["--kl-base", "{here}/small", "-p", TEXT], "whose text is used again"),
        (["--kl-base", "{here}/small", "-c", "64"], "was made with chunks of 8 tokens"),
        (["-p", TEXT, "-c", "32", "--save-logits", "{here}/no/base"], "cannot be written"),
    ],
)
def test_what_is_refused(command, tiny_path, tmp_path, words, said):
    (tmp_path / "short").write_bytes(b"_logits_abc")
    rows = np.zeros((3, 5), np.float32)
    with LogitWriter(tmp_path / "small", [[0, 1, 2, 3, 4, 0, 1, 2]], 5) as out:
        out.add(rows)
    (tmp_path / "cut").write_bytes((tmp_path / "small").read_bytes()[:-2])
    before = sorted(tmp_path.iterdir())
    status, _, err = command("perplexity", "-m", tiny_path, *(w.format(here=tmp_path) for w in words))
    assert status == 2
    assert said in err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("over", ["model.gguf", "text"])
@pytest.mark.parametrize("words", [("imatrix", "-o"), ("perplexity", "--save-logits")], ids="".join)
def test_nothing_is_written_over_what_is_read(command, tiny_path, tmp_path, words, over):
    model, text = tmp_path / "model.gguf", tmp_path / "text"
    shutil.copy(tiny_path, model)
    text.write_text(TEXT)
    kept = model.read_bytes()
    status, _, err = command(words[0], "-m", model, "-f", text, "-c", 32, words[1], tmp_path / over)
    assert status == 2 and "input and output are the same file" in err
    assert model.read_bytes() == kept and text.read_text() == TEXT and len(list(tmp_path.iterdir())) == 2
    status, _, err = command(words[0], "-m", model, "-f", text, "-c", 32, "--chunks", 0, words[1], tmp_path / "new")
    assert status == 2 and "--chunks 0" in err


@pytest.mark.real_model
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_perplexity_of_the_real_models_agrees_with_an_independent_engine(name):
    """With its perplexity of the same weights in F16, as it rounds the inputs of quantised products its own way."""
    from real_models import gemma3_270m, smollm2_135m

    golden = json.loads((Path(__file__).parent / "golden" / "perplexity.json").read_text())
    path = {"smollm2-135m": smollm2_135m, "gemma3-270m": gemma3_270m}[name]()
    if path is None:
        pytest.skip("the model's package is not installed")
    text = (Path(__file__).parents[1] / "golden" / "text.txt").read_text()
    with hk.load(path, n_ctx=golden["n_ctx"]) as model:
        score = measure(model, cut(model.tokenize(text), golden["n_ctx"]))
    wanted = golden[f"{name} f16"]
    assert len(score.nll) == wanted["scored"]
    assert score.perplexity[0] == pytest.approx(wanted["perplexity"], rel=5e-3)
