"""--dry-run, --plan, `hybridkern plan`, and what -v says of a loaded model."""

from __future__ import annotations

import json
import sys

import pytest

from hybridkern.plan.plan import Plan


def test_a_dry_run_shows_the_plan(command, tiny_path):
    status, out, err = command("generate", "-m", tiny_path, "--dry-run", "--gpu-memory", "700", "-c", "128")
    assert status == 0 and err == ""
    assert "cuda0: all" in out and "CUDA itself" in out and "predicted: load" in out
    assert "blk.0" not in out
    status, out, _ = command("generate", "-m", tiny_path, "--dry-run", "--gpu-memory", "700", "-c", "128", "--verbose")
    assert status == 0 and "blk.0" in out and "embedding" in out and "head" in out


def test_a_plan_is_saved_and_followed(command, tiny_path, tmp_path):
    path = tmp_path / "plan.json"
    words = ("generate", "-m", tiny_path, "-p", "x", "-n", "1", "--temp", "0", "--device", "none", "--plan", path)
    assert command(*words, "-c", "100")[0] == 0
    kept = Plan.from_json(path.read_text())
    assert kept.n_ctx == 100 and kept.assignment.devices == ("cpu",)
    status, _, err = command(*words, "--verbose")
    assert status == 0 and "context 100" in err
    status, _, err = command(*words, "-ngl", "0")
    assert status == 2 and "replayed as it is" in err
    path.write_text("{}")
    status, _, err = command(*words)
    assert status == 2 and "no plan that hybridkern saved" in err
    status, _, err = command(*words[:-1], tmp_path / "nowhere" / "plan.json")
    assert status == 2 and "cannot be written" in err


def test_a_loaded_model_tells_its_plan(command, tiny_path):
    status, _, err = command("generate", "-m", tiny_path, "-p", "x", "-n", "1", "--verbose")
    assert status == 0
    assert "blk.0" in err and "predicted: load" in err and "CPU kernel set" in err


def test_the_plan_is_drawn(command, tiny_path, tmp_path):
    result = tmp_path / "bench.json"
    result.write_text(
        json.dumps({"results": [{"test": "pp512", "tokens_per_s": 10.0}, {"test": "tg64", "tokens_per_s": 5}]})
    )
    status, out, _ = command("plan", "-m", tiny_path, "--gpu-memory", "700", "-c", "128", "--bench", result)
    assert status == 0
    assert " cuda0 |" in out and "# weights" in out and "blk.0" in out
    assert "pp512: measured 10.0 t/s, predicted" in out and "tg64: measured 5.0 t/s" in out
    status, out, _ = command("plan", "-m", tiny_path, "--json")
    assert status == 0 and Plan.from_json(out).model == "tiny.gguf"
    result.write_text("[]")
    status, _, err = command("plan", "-m", tiny_path, "--bench", result)
    assert status == 2 and "no result of `hybridkern bench --json`" in err


def test_a_picture_needs_matplotlib(command, tiny_path, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, _, err = command("plan", "-m", tiny_path, "--plot", tmp_path / "out.png")
    assert status == 2 and 'pip install "hybridkern[plot]"' in err


def test_a_picture(command, tiny_path, tmp_path):
    pytest.importorskip("matplotlib")
    result = tmp_path / "bench.json"
    result.write_text(json.dumps({"results": [{"test": "pp512", "tokens_per_s": 10.0}]}))
    picture = tmp_path / "out.png"
    words = ("plan", "-m", tiny_path, "--gpu-memory", "700", "--plot", picture, "--bench", result)
    assert command(*words)[0] == 0
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    status, _, err = command(*words[:-3], tmp_path / "out.nothing")
    assert status == 2 and "cannot be written" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-ot", "attn_q=cpu", "-ot", "attn=cpu"), None),
        (("--place", "blk.0=cpu", "-ngl", "auto"), None),
        (("--n-cpu-ffn", "1", "-nkvo", "--fit", "off"), None),
        (("--gpu-memory", "700", "-ngl", "all", "-ot", "ffn=CPU"), "-ot ffn=CPU wins over -ngl all"),
        (("--gpu-memory", "700,700", "-ts", "1,1", "-ngl", "all"), "cuda1"),
        (("--gpu-memory", "560", "-ngl", "all"), "does not fit as it was asked for"),
    ],
)
def test_flags_of_placement(command, tiny_path, words, said):
    status, out, err = command("generate", "-m", tiny_path, "--dry-run", "-c", "128", *words)
    assert status == (1 if said and "fit" in said else 0), err
    assert said is None or said in out + err
