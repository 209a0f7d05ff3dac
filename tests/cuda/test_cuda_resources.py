"""Registers and spills of the kernels, as the compiler reported them to the build."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from hybridkern.kernels.cuda.images import MANIFEST, image_folder

pytestmark = pytest.mark.on_host
# What runs for every token, on the architecture that is measured: none of it may spill.
HOT = re.compile(r"hk_(token|matvec|matmul|wgmma|decode|prefill|heads|norm|rows|quant|argmax|embed)")
HOT_CODE = "sm_90a"
LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'hk_first' for 'sm_90a'
ptxas info    : Function properties for hk_first
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 516 bytes smem
ptxas info    : Compile time = 100.915 ms
ptxas info    : Compiling entry function 'hk_second' for 'sm_90a'
ptxas info    : Function properties for hk_second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers
"""


def script() -> Any:
    path = Path(__file__).parents[2] / "cmake" / "cuda_kernels.py"
    spec = importlib.util.spec_from_file_location("cuda_kernels", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_ptxas_says_is_understood() -> None:
    found = script().resources(LOG)
    assert found == {
        "hk_first": {"registers": 255, "stack": 16, "spill_stores": 8, "spill_loads": 12, "shared": 516},
        "hk_second": {"registers": 32, "stack": 0, "spill_stores": 0, "spill_loads": 0, "shared": 0},
    }
    first, second = script().table({"sm_90a": found}).splitlines()
    assert "255 registers" in first and "8+12 bytes spilled" in first and "spilled" not in second


def test_hot_kernels_do_not_spill() -> None:
    path = image_folder() / MANIFEST
    if not path.exists():
        pytest.skip("this build has no compiled CUDA kernels")
    facts = json.loads(path.read_text())
    print(script().table(facts["kernels"]))
    if HOT_CODE not in facts["kernels"]:
        pytest.skip(f"this build has no kernels for {HOT_CODE}")
    hot = {name: k for name, k in facts["kernels"][HOT_CODE].items() if HOT.match(name)}
    assert len(hot) > 50
    spilling = {name: k for name, k in hot.items() if k["spill_stores"] + k["spill_loads"]}
    assert spilling == {}


@pytest.mark.parametrize(("said", "status"), [(LOG, 0), ("ptxas info    : 0 bytes gmem", 0), ("", 1)])
def test_a_report_is_written_or_missed(tmp_path: Path, said: str, status: int) -> None:
    """A source without kernels for an architecture is fine, a compiler that says nothing is not."""
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\n")
    nvcc.chmod(0o755)
    assert script().compile_one(str(nvcc), "sm_90a", "a.cu", str(tmp_path / "a.cubin")) == status
    assert (tmp_path / "a.cubin.json").exists() is (status == 0)
