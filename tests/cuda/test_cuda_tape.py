"""The tape of a one-token step: which launches become instructions, where blocks wait, and what a warp takes of the
weights. Needs no GPU."""

from __future__ import annotations

import ctypes as c
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import CASES
from test_cuda_lowering import AllKernels, FakeDevice, NoKernels, tape_of

from hybridkern.kernels.cuda import arguments, launches, token
from hybridkern.kernels.cuda.layout import LAYOUTS, device_bytes

pytestmark = pytest.mark.on_host
SOURCES = Path(__file__).parents[2] / "csrc"
WARPS = 4  # of stream_on_host.cpp


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(FakeDevice, "kernels", AllKernels())
    return monkeypatch


def names_of(tape: Any) -> list[str]:
    return [one.function for one in tape.launches(1)]


def listed(tape: Any) -> list[token.Instruction]:
    """The instructions that a tape's launches become."""
    graphs = tape
    graphs.why_many = "as launches"
    made = [one for one, _ in graphs._built(graphs._holdings.step_class(1), graphs._pieces, None)]
    ((first, end),) = token.known_runs(made)
    return token.instructions(made[first:end], 132)


@pytest.mark.parametrize("case", list(CASES))
def test_every_architecture_is_one_kernel(gpu: Any, tmp_path: Path, case: str) -> None:
    arch, options = CASES[case]
    tape = tape_of(gpu, tmp_path, arch, **options, type="Q8_0")
    assert tape.why_many == ""
    names = names_of(tape)
    assert len([n for n in names if n.startswith("hk_token")]) == 1
    assert {n.rsplit("_", 1)[0] for n in names} <= {
        "hk_angles",
        "hk",
        "hk_embed_q8",
        "hk_token",
        "hk_matvec2_q8",
        "hk_argmax",
    }


def test_what_stays_and_why(gpu: Any, tmp_path: Path) -> None:
    """Float weights, another GPU, images without the kernel, too little shared memory."""

    def why(type_name: str = "Q8_0", **device: Any) -> str:
        for name, value in device.items():
            gpu.setattr(FakeDevice, name, value)
        tape = tape_of(gpu, tmp_path, "llama", type=type_name)
        assert not any(one.together for one in tape.launches(1))
        return tape.why_many

    assert "hk_matvec_f16" in why("F16")
    assert "hk_token_64" in why(kernels=NoKernels())
    gpu.setattr(FakeDevice, "kernels", AllKernels())
    assert "shared memory" in why(block_memory=99 << 10)
    gpu.setattr(FakeDevice, "block_memory", 227 << 10)
    assert "9.0" in why(capability=(8, 0))


def test_blocks_wait_where_they_must(gpu: Any, tmp_path: Path) -> None:
    """A llama block: q, k, v; attention; output; gate and up; down. The next group of products with the same input
    does not wait."""
    made = listed(tape_of(gpu, tmp_path, "llama", type="Q8_0", n_layer=2))
    kinds = [token.PRODUCTS, token.ATTEND, token.PRODUCTS, token.PRODUCTS, token.PRODUCTS]
    assert [i.kind for i in made] == kinds + kinds[:2]  # the precise products behind the last attention are launches
    assert [i.waits for i in made] == list(range(7))
    three = listed(tape_of(gpu, tmp_path, "qwen2", type="Q4_K", n_layer=2, retype={}))
    assert [i.waits for i in three][:2] == [0, 1]


def _instruction(reads: list[token.Span], writes: list[token.Span], **fields: Any) -> token.Instruction:
    return token.Instruction(token.ROWS, b"", reads=reads, writes=writes, **fields)


def test_waits_follow_reads_and_writes() -> None:
    a, b, d = (0, 4), (4, 8), (8, 12)
    made = [
        _instruction([a], [b]),  # first
        _instruction([a], [d]),  # the same input: together
        _instruction([b], [(12, 16)]),  # what the first wrote
        _instruction([a], [b]),  # overwrites what is being read
        _instruction([a], [d]),  # written before the last meeting
    ]
    token._add_waits(made)
    assert [i.waits for i in made] == [0, 0, 1, 2, 0]


def test_what_attention_changes_may_not_be_read_elsewhere() -> None:
    attention = _instruction([(0, 4)], [(8, 12)], lost=[(0, 4)])
    token._check_lost([attention, _instruction([(8, 12)], [(0, 8)]), _instruction([(0, 4)], [])])
    with pytest.raises(token.NotForToken):
        token._check_lost([attention, _instruction([(2, 3)], [])])


def test_constants_are_the_kernels() -> None:
    text = "".join(
        (SOURCES / "cuda" / name).read_text() for name in ("hk_stream.cuh", "hk_args.h", "hk_token_block.cuh")
    )
    given = dict(re.findall(r"#define (\w+) +(\d+)\b", text))
    assert (int(given["HK_TAPE"]), int(given["HK_AHEAD"])) == (token.TAPE, token.PIECES)
    assert int(given["HK_INSTRUCTION_BYTES"]) == token.INSTRUCTION
    assert int(given["HK_STEP_CODES"]) == token.STEP_CODES
    for size, (name, warps, area) in token.KERNELS.items():
        source = (SOURCES / "cuda" / f"{launches.home_of(name)}.cu").read_text()
        numbers = dict(re.findall(r"#define (\w+) +(\d+)\n", source))
        assert (int(numbers["WARPS"]), int(numbers["RING"])) == (warps, area)
        assert f" {name}(" in source and f"token<{size}>" in source
    table = re.findall(r"HK_TYPE\((\w+), +\w+, +(\d+),.*Q8_32\)", (SOURCES / "formats" / "hk_types.def").read_text())
    assert {name: int(number) for name, number in table} == token.IDS


# --- the stream of weights ---


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    made = tmp_path_factory.mktemp("stream") / "on_host.so"
    source = str(Path(__file__).parent / "host" / "stream_on_host.cpp")
    subprocess.run([compiler, "-std=c++20", "-O1", "-shared", "-fPIC", source, "-o", str(made)], check=True)
    return c.CDLL(str(made))


def random_tape(rng: np.random.Generator, blocks: int, base: int) -> tuple[list[token.Instruction], list[int], int]:
    """Instructions, the steps of each, and the bytes of all weights."""
    made, steps, at = [], [], 0
    for _ in range(int(rng.integers(4, 30))):
        if rng.random() < 0.3:
            made.append(token.Instruction([token.ATTEND, token.ROWS][rng.integers(2)], b""))
            steps.append(0)
            continue
        formats = [str(t) for t in rng.choice(list(token.IDS), 1 + int(rng.random() < 0.3), replace=False)]
        glu = len(formats) == 1 and rng.random() < 0.4
        cols = 32 * int(rng.integers(1, 40))
        if any(LAYOUTS[t].block == 256 for t in formats):
            cols = 256 * int(rng.integers(1, 6))
        n = 2 if glu else max(len(formats), int(rng.integers(1, 5)))
        rows = [int(rng.integers(1, 300))] * n if glu else [int(x) for x in rng.integers(1, 300, n)]
        n_first = n if len(formats) == 1 else int(rng.integers(1, n))
        parts = []
        for i, r in enumerate(rows):
            parts.append({"w": launches.matrix(base + at), "rows": r, "out": 1})
            at += device_bytes(formats[i >= n_first], r, cols)
        name = f"hk_matvec_{'_'.join(formats).lower()}"
        args = arguments.pack(
            arguments.MATVEC, cols=cols, part=parts, n_parts=1 if glu else n, n_first=n_first, glu=int(glu),
            rows_are_outputs=int(rng.random() < 0.2),
        )  # fmt: skip
        made.append(token._products(launches.Launch(name, (1, 1, 1), (1, 1, 1), 0, args), blocks))
        steps.append(sum(-(-r // 16) for r in rows) * -(-cols // 256))
    return made, steps, at


@pytest.mark.parametrize("seed", range(40))
def test_every_step_is_taken_once_and_whole(library: Any, seed: int) -> None:
    """Random tapes and rings: each warp takes its steps in order, their bytes are right when they are taken, whatever
    attention does to the end of its memory, and all warps together take every step once."""
    rng = np.random.default_rng(seed)
    blocks, outputs = int(rng.integers(1, 9)), int(rng.random() < 0.8)
    area = 128 * int(rng.integers(1, 40))
    _, _, size = random_tape(np.random.default_rng(seed), blocks, 0)[0:3]
    weights = np.arange(0, max(4, size), 4, dtype=np.uint32)
    made, steps, _ = random_tape(np.random.default_rng(seed), blocks, weights.ctypes.data)
    ring = area + max([i.piece for i in made]) + 128 * int(rng.integers(0, 200))
    attends = (rng.random((len(made), blocks, WARPS)) < 0.7).astype(np.uint8)
    packed = bytearray(b"".join(i.packed() for i in made))
    for k in range(len(made)):  # an instruction's number, for the host's program to know it by
        packed[512 * k + 4 : 512 * k + 8] = k.to_bytes(4, "little")
    most = max(steps) + 1
    visits = np.zeros((len(made), most), np.int32)
    wrong = library.stream_on_host(
        bytes(packed), len(made), blocks, ring // 16 * 16, area, outputs, attends.ctypes.data_as(c.c_void_p),
        weights.ctypes.data_as(c.c_void_p), visits.ctypes.data_as(c.c_void_p), most,
    )  # fmt: skip
    assert wrong == 0
    for k, (i, count) in enumerate(zip(made, steps, strict=True)):
        skipped = not outputs and count and np.frombuffer(i.body, arguments.MATVEC)[0]["rows_are_outputs"]
        assert np.array_equal(visits[k, :count], np.full(count, 0 if skipped else 1)) and not visits[k, count:].any()
