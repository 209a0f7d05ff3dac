"""The structs of hk_args.h and of arguments.py are the same; needs a C compiler, no GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hybridkern.kernels.cuda import arguments, launches, tiles
from hybridkern.kernels.cuda.layout import LAYOUTS

pytestmark = pytest.mark.on_host
HEADER = Path(__file__).parents[2] / "csrc" / "cuda" / "hk_args.h"
STRUCTS = {
    "step": arguments.STEP, "matrix": arguments.MATRIX, "convert_args": arguments.CONVERT, "part": arguments.PART,
    "matvec_args": arguments.MATVEC, "matmul_args": arguments.MATMUL, "rows_args": arguments.ROWS,
    "observe_args": arguments.OBSERVE,
    "embed_args": arguments.EMBED, "angles_args": arguments.ANGLES, "cache": arguments.CACHE,
    "stream": arguments.STREAM, "heads_args": arguments.HEADS, "attend_args": arguments.ATTEND,
    "argmax_args": arguments.ARGMAX, "topk_args": arguments.TOPK, "handover": arguments.HANDOVER,
    "choice": arguments.CHOICE,
    "format": arguments.FORMAT, "token_args": arguments.TOKEN, "link_rows": arguments.LINK_ROWS,
    "link_args": arguments.LINK,
}  # fmt: skip


def test_fields_lie_where_c_puts_them(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    checks = [f'#include "{HEADER}"', "#include <stddef.h>"]
    for name, kind in STRUCTS.items():
        checks.append(f'_Static_assert(sizeof(hk_{name}) == {kind.itemsize}, "{name}");')
        assert kind.names is not None and kind.fields is not None
        for field in kind.names:
            at = kind.fields[field][1]
            checks.append(f'_Static_assert(offsetof(hk_{name}, {field}) == {at}, "{name}.{field}");')
    source = tmp_path / "check.c"
    source.write_text("\n".join(checks) + "\n")
    subprocess.run([compiler, "-std=c11", "-c", "-o", str(tmp_path / "check.o"), str(source)], check=True)


def test_constants_that_kernels_and_launches_share() -> None:
    """How many blocks a cluster has, how many warps a matrix-vector block at most, and how long a short step is."""
    names = ("hk_cluster.cuh", "hk_group.cuh", "matvec.cu")
    text = "".join((HEADER.parent / name).read_text() for name in names)
    given = dict(re.findall(r"#define (HK_\w+) +(\d+)(?: /\*.*)?\n", text))
    assert int(given["HK_SHORT_STEP"]) == launches.MATVEC_SHORT
    assert int(given["HK_CLUSTER"]) == launches.MATVEC_CLUSTER
    assert int(given["HK_MAX_STEP_WARPS"]) == launches.MATVEC_WARPS
    assert int(given["HK_MATVEC_THREADS"]) == int(given["HK_MATVEC_FEW_THREADS"]) == 32 * launches.MATVEC_WARPS


def test_tiles_are_those_that_are_compiled() -> None:
    """The shapes in wgmma.cu, and the registers in hk_tile.cuh that decide how many threads a block has."""
    text = (HEADER.parent / "wgmma.cu").read_text()
    compiled = {name: numbers for numbers, name in re.findall(r"typedef shape<([\d, ]+), \w+> shape_(\w+);", text)}
    for type_name in ("Q4_K", "F16"):
        for t in tiles.serving(type_name):
            numbers = (t.tokens, t.groups, t.along, t.steps, t.chunks, t.split)
            assert compiled.pop(t.name) == ", ".join(map(str, numbers))
            groups = t.groups * t.along
            assert t.threads == 128 * groups + (128 if groups == 4 or t.tokens == 256 else 32 * t.along)
            assert max(t.shared(f) for f in LAYOUTS if t in tiles.serving(f)) <= launches.BLOCK_MEMORY
    assert not compiled
