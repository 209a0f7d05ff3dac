"""What the user fixes by hand, and what is said when that cannot be."""

from __future__ import annotations

from typing import Any

import pytest
from planned import model_of

from hybridkern.errors import ArgumentError
from hybridkern.plan.inventory import Inventory
from hybridkern.plan.rules import Rules, resolve

N = 32


@pytest.fixture(scope="module")
def inventory(large_path: Any) -> Inventory:
    return Inventory.of(model_of(large_path))


def blocks_on(fixed: Any, device: str, tensor: str = "attn_q") -> list[int]:
    return [i for i in range(N) if fixed.tensors.get(f"blk.{i}.{tensor}.weight") == device]


@pytest.mark.parametrize(
    ("layers", "first", "head", "embedding"),
    [(0, 32, "cpu", "cpu"), (1, 32, "gpu", "cpu"), (2, 31, "gpu", "cpu"), (32, 1, "gpu", "cpu"), (33, 0, "gpu", "gpu"),
     (99, 0, "gpu", "gpu"), ("all", 0, "gpu", "gpu")],
)  # fmt: skip
def test_layers_are_counted_as_llama_cpp_counts(inventory, layers, first, head, embedding):
    """The head first, then blocks from the last one; the embedding only with everything."""
    fixed = resolve(Rules(n_gpu_layers=layers), inventory, ["cuda0"])
    assert blocks_on(fixed, "gpu") == blocks_on(fixed, "gpu", "ffn_down") == list(range(first, N))
    assert blocks_on(fixed, "cpu") == list(range(first))
    assert (fixed.head, fixed.embedding) == (head, embedding)


def test_auto_fixes_nothing(inventory):
    for layers in (None, "auto"):
        fixed = resolve(Rules(n_gpu_layers=layers), inventory, ["cuda0"])
        assert not fixed.tensors and not fixed.kv and fixed.head is None and fixed.embedding is None


def test_places(inventory):
    rules = Rules(place="blk.0-19=cuda0,blk.20-30=cpu,blk.31.ffn=CPU,kv.3=cpu,head=CUDA0,embd=cpu")
    fixed = resolve(rules, inventory, ["cuda0"])
    assert blocks_on(fixed, "cuda0") == list(range(20))
    assert blocks_on(fixed, "cpu") == list(range(20, 31))
    assert fixed.tensors["blk.31.ffn_up.weight"] == "cpu" and "blk.31.attn_q.weight" not in fixed.tensors
    assert fixed.kv == {**dict.fromkeys(range(20), "cuda0"), **dict.fromkeys(range(20, 31), "cpu")}
    assert (fixed.head, fixed.embedding) == ("cuda0", "cpu")


def test_a_cache_apart_from_its_block(inventory):
    fixed = resolve(Rules(place="kv.*=cpu,blk.*=cuda0"), inventory, ["cuda0"])
    assert set(fixed.kv.values()) == {"cpu"} and blocks_on(fixed, "cuda0") == list(range(N))


def test_the_first_pattern_that_matches_wins(inventory):
    rules = Rules(override_tensor=(r"blk\.[0-9]\.ffn=CPU,ffn=cuda0", "ffn_up=cpu"))
    fixed = resolve(rules, inventory, ["cuda0"])
    assert blocks_on(fixed, "cpu", "ffn_up") == list(range(10))
    assert blocks_on(fixed, "cuda0", "ffn_up") == list(range(10, N))
    assert "-ot ffn=cuda0 wins over -ot ffn_up=cpu for blk.10.ffn_up.weight and 21 more tensors" in fixed.notes


def test_a_comma_inside_of_a_pattern(inventory):
    fixed = resolve(Rules(override_tensor=(r"blk\.\d{1,1}\.attn_q=cpu,attn_k=cpu",)), inventory, ["cuda0"])
    assert blocks_on(fixed, "cpu") == list(range(10)) and blocks_on(fixed, "cpu", "attn_k") == list(range(N))


def test_which_rule_won_is_said(inventory):
    rules = Rules(n_gpu_layers="all", place="blk.0-3=cuda0", n_cpu_ffn=6, override_tensor=("blk.1.ffn_up=cpu",))
    fixed = resolve(rules, inventory, ["cuda0"])
    assert "-ot blk.1.ffn_up=cpu wins over --place blk.0-3=cuda0 for blk.1.ffn_up.weight" in fixed.notes
    assert "--place blk.0-3=cuda0 wins over --n-cpu-ffn 6 for blk.0.ffn_gate.weight and 10 more tensors" in fixed.notes
    assert "--n-cpu-ffn 6 wins over -ngl all for blk.4.ffn_gate.weight and 5 more tensors" in fixed.notes
    assert blocks_on(fixed, "cpu", "ffn_down") == [4, 5]
    assert not [note for note in fixed.notes if "--place blk.0-3=cuda0 wins over -ngl" in note]  # they agree


def test_caches_with_the_cpu(inventory):
    fixed = resolve(Rules(n_gpu_layers="all", kv_offload=False, place="kv.7=cuda0"), inventory, ["cuda0"])
    assert {i for i, d in fixed.kv.items() if d == "cpu"} == set(range(N)) - {7}
    assert "--place wins over -nkvo for the caches that it names" in fixed.notes


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"override_tensor": ("blk.(=cpu",)}, "no regular expression"),
        ({"override_tensor": ("exps=cpu",)}, "matches no matrix of this model, such as blk.0.attn_q.weight"),
        ({"override_tensor": ("attn_norm=cpu",)}, "matches no matrix"),
        ({"override_tensor": ("ffn=gpu0",)}, "'gpu0' is no device; allowed are cpu, cuda0"),
        ({"override_tensor": ("ffn=CUDA1",)}, r"there is no GPU cuda1: this process sees 1 \(cuda0\)"),
        ({"place": "blk.30-40=cpu"}, "the blocks of this model are 0 to 31"),
        ({"place": "blk.5-3=cpu"}, "the blocks of this model are 0 to 31"),
        ({"place": "tail=cpu"}, "names no part of a model; allowed are blk.3"),
        ({"place": "kv.0.ffn=cpu"}, "a cache has no parts; write kv.0"),
        ({"tensor_split": (1.0, 2.0)}, "2 GPUs are named, there are 1"),
    ],
)
def test_rules_that_cannot_be_used(inventory, named, said):
    with pytest.raises(ArgumentError, match=said):
        resolve(Rules(**named), inventory, ["cuda0"])


def test_gpus_that_are_not_there(inventory):
    with pytest.raises(ArgumentError, match="this process sees none"):
        resolve(Rules(place="blk.0=cuda0"), inventory, [])
