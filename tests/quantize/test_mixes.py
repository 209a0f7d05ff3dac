"""Which tensor gets which type, against what an independent quantiser made of the same files."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from shapes import MODELS, make

from hybridkern.errors import ArgumentError
from hybridkern.gguf import GGUFFile
from hybridkern.quantize import FILE_TYPES, Wishes, file_type_named, plan

GOLDEN = json.loads((Path(__file__).parent / "golden" / "mixes.json").read_text())["models"]


@pytest.fixture(scope="module")
def file_of(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("shapes"), {}

    def open_file(name: str) -> GGUFFile:
        if name not in made:
            make(str(folder / f"{name}.gguf"), *MODELS[name])
            made[name] = GGUFFile.open(folder / f"{name}.gguf")
        return made[name]

    return open_file


def runs_of(targets):
    """kind -> runs of types in the order of the blocks, as the golden file has them."""
    found: dict[str, dict[int, str]] = {}
    for t in targets:
        parts = t.info.name.removesuffix(".weight").split(".")
        kind, block = (parts[2], int(parts[1])) if parts[0] == "blk" else (parts[0], 0)
        if "norm" not in kind:
            found.setdefault(kind, {})[block] = t.type.name
    return {
        kind: " ".join(f"{t}*{len(list(g))}" for t, g in itertools.groupby(of[i] for i in sorted(of)))
        for kind, of in found.items()
    }


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("imatrix", [False, True], ids=["plain", "imatrix"])
def test_the_mixes_are_those_of_an_independent_quantiser(file_of, name, imatrix):
    file, golden = file_of(name), GOLDEN[name]["types"]
    assert set(FILE_TYPES) == {label for label in golden if "imatrix" not in label}
    for label, kind in FILE_TYPES.items():
        wanted = golden.get(f"{label} imatrix", golden[label]) if imatrix else golden[label]
        assert runs_of(plan(file, kind, Wishes(), imatrix)) == wanted, label


def test_vectors_are_copied(file_of):
    for target in plan(file_of("phi3-32"), FILE_TYPES["Q4_K_M"], Wishes()):
        assert target.copied == ("norm" in target.info.name)


def test_fallbacks_say_why(file_of):
    targets = {t.info.name: t for t in plan(file_of("llama-gqa3-30"), FILE_TYPES["Q2_K"], Wishes())}
    assert targets["blk.0.attn_q.weight"].reason == "Q4_0 in place of Q2_K: rows of 576 are no multiple of 256"
    assert targets["blk.0.ffn_down.weight"].reason == ""
    assert targets["blk.0.ffn_down.weight"].nbytes == 2 * 1536 // 256 * 110


def test_wishes(file_of):
    file = file_of("llama-mha-32")

    def types(**wishes):
        return {t.info.name: t.type.name for t in plan(file, FILE_TYPES["Q4_K_M"], Wishes(**wishes))}

    assert set(types(pure=True).values()) == {"Q4_K", "F32"}
    assert types(output="Q8_0", embedding="Q5_1")["output.weight"] == "Q8_0"
    assert types(output="Q8_0", embedding="Q5_1")["token_embd.weight"] == "Q5_1"
    assert types(keep_output=True)["output.weight"] == "F16"
    ruled = types(rules=(("ffn_(up|gate)", "IQ4_XS"), (r"blk\.1\.", "Q8_0")))
    assert ruled["blk.1.ffn_up.weight"] == "IQ4_XS"  # the first rule that is found
    assert ruled["blk.1.attn_q.weight"] == "Q8_0"
    assert ruled["blk.2.attn_q.weight"] == "Q4_K"


def test_rules_that_find_nothing_say_so(file_of):
    file = file_of("llama-mha-32")
    with pytest.raises(ArgumentError, match=r"'ffn_dwon' is found in none of the 226 matrices"):
        plan(file, FILE_TYPES["Q4_0"], Wishes(rules=(("ffn_dwon", "Q8_0"),)))
    with pytest.raises(ArgumentError, match="not a regular expression"):
        plan(file, FILE_TYPES["Q4_0"], Wishes(rules=(("ffn_(", "Q8_0"),)))


def test_names_of_file_types():
    assert file_type_named("q4_k").name == "Q4_K_M"
    assert file_type_named("iq4_xs").id == 30
    with pytest.raises(ArgumentError, match="'Q9_K' is not a file type; there are F16, BF16, Q8_0"):
        file_type_named("Q9_K")
