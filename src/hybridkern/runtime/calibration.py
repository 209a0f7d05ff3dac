"""Measures the rates of this machine in about two seconds, and keeps them: one record per processor, kernel set, number
of threads, GPUs and driver."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkern.errors import ArgumentError
from hybridkern.kernels import _cpu
from hybridkern.kernels.cpu.selection import chosen_name, table_named
from hybridkern.kernels.cpu.weights import FORMATS
from hybridkern.kernels.sample import Sample, Shape, random_bytes
from hybridkern.plan.rates import DEFAULT_CPU, DEFAULT_GPU, DEFAULT_LINK, DEFAULT_RATES, LinkRates, Rates, SetRates

from .engine import Engine
from .footprint import available_memory

VERSION = 2  # of what is measured
SMALL = Shape(512, 1536, 8, 64)  # of a block that every cache holds
MEDIUM = Shape(2048, 5632, 16, 128)  # whose activations lie between its products as those of a model do
_COLS, _MANY, _MANY_ROWS = 4096, 512, 256
_LARGE = 8  # times more rows than that for one format: what a large product gains, others gain
_STEP, _DEPTH = 256, 1536  # tokens
_PRODUCTS = 4.0  # groups of products in a block
_WHOLE = 1.08  # how much longer a token takes in a whole model than in a few blocks over and over
_FIT = 64 << 20  # bytes of weights of a format
_LEAST, _MOST = 256 << 20, 1536 << 20


def known_rates(gpus: Sequence[int], threads: int) -> Rates:
    """Those that are kept, or the built-in ones, whose origin says what they are."""
    return _read(_key(gpus, threads)) or DEFAULT_RATES


def are_known(gpus: Sequence[int], threads: int) -> bool:
    """Whether this machine has been calibrated."""
    return _read(_key(gpus, threads)) is not None


def calibrate(gpus: Sequence[int], threads: int) -> Rates:
    """Measure, keep and return."""
    begin = time.perf_counter()
    cpu = cpu_rates(threads)
    sets, links = {}, {}
    for number in gpus:
        sets[f"cuda{number}"], links[f"cuda{number}"] = gpu_rates(number)
    seconds = time.perf_counter() - begin
    origin = f"measured on {time.strftime('%Y-%m-%d')} in {seconds:.1f} s"
    made = Rates(cpu, sets, links, origin)
    _write(_key(gpus, threads), made)
    if gpus:  # for what runs on the CPU alone
        _write(_key((), threads), Rates(cpu, origin=origin))
    return made


# where they are kept


def rates_file() -> Path:
    """One file for all machines that share a home."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "hybridkern" / "rates.json"


def _key(gpus: Sequence[int], threads: int) -> str:
    """What the rates depend on."""
    facts: list[Any] = [VERSION, _processor(), os.cpu_count(), chosen_name(), threads]
    if gpus:
        from hybridkern.kernels.cuda import driver

        facts += [driver.driver_version(), [(g.name, g.capability) for g in driver.gpus() if g.number in gpus]]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _records() -> dict[str, Any]:
    try:
        records = json.loads(rates_file().read_text())
    except (OSError, ValueError):
        return {}
    return records if isinstance(records, dict) else {}


def _read(key: str) -> Rates | None:
    record = _records().get(key)
    if record is None:
        return None
    try:
        return Rates.from_json(record)
    except ArgumentError:
        return None  # of another version: it is measured again


def _write(key: str, rates: Rates) -> None:
    """Keeps them if that is possible; a home that cannot be written to costs two seconds each time."""
    path = rates_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
            json.dump(_records() | {key: rates.to_json()}, file, indent=1)
        os.replace(file.name, path)
    except OSError:
        pass


# the CPU


def cpu_rates(threads: int) -> SetRates:
    """Of the kernel set in use."""
    cache = _last_cache()
    free = available_memory() or 1 << 30
    # A cache that keeps a part of what is read over and over would look like fast memory.
    size = int(min(max(_LEAST, 5 * cache), _MOST, max(16 << 20, free // 4))) >> 20 << 20
    memory = _cpu.Memory(size, True)
    _fill(np.frombuffer(memory, np.uint8), threads)
    table = table_named(chosen_name())
    x = _cpu.Memory(4 * _COLS * _MANY, True)
    np.frombuffer(x, np.float32)[:] = 0.01

    def product(name: str, rows: int, n: int, repeats: int) -> float:
        best = math.inf
        for _ in range(repeats):
            begin = time.perf_counter()
            table.matmul(FORMATS[name][0], memory.address, rows, _COLS, x.address, _COLS, n, out.address, rows, threads)
            best = min(best, time.perf_counter() - begin)
        return best

    def rows_of(name: str, nbytes: int) -> int:
        return max(1, nbytes // _cpu.panel_bytes(FORMATS[name][0], _COLS)) * 16

    def file_bytes(name: str, rows: int) -> float:
        _, _, block, nbytes, _ = FORMATS[name]
        return rows * _COLS / block * nbytes

    all_rows = rows_of("Q4_K", size)
    many = min(_MANY_ROWS * threads, all_rows)  # some milliseconds, beside which the start of threads is little
    most = max(rows_of(name, min(_FIT, size)) for name in FORMATS)
    large = min(_LARGE * many, all_rows)
    out = _cpu.Memory(4 * max(all_rows, most, large * _MANY), True)
    slow = file_bytes("Q4_K", all_rows) / product("Q4_K", all_rows, 1, 3)
    fast, macs = {}, {}
    for name in FORMATS:
        rows = rows_of(name, min(_FIT, size))
        fast[name] = file_bytes(name, rows) / product(name, rows, 1, 3)
        macs[name] = many * _COLS * _MANY / product(name, many, _MANY, 2)
    gain = max(1.0, large * _COLS * _MANY / product("Q4_K", large, _MANY, 2) / macs["Q4_K"])
    macs = {name: gain * rate for name, rate in macs.items()}
    fast[""], macs[""] = fast["Q4_K"], macs["Q4_K"]
    read = {name: min(rate, slow) for name, rate in fast.items()}
    in_cache = cache > 1.5 * _FIT
    made = replace(
        DEFAULT_CPU, load=_packing(threads), read=read, macs=macs, fast=fast if in_cache else {},
        fast_bytes=int(cache * 0.7) if in_cache else 0,
    )  # fmt: skip
    return _with_blocks(made, many * _COLS * _STEP / product("Q4_K", many, _STEP, 2), threads)


def _fill(memory: npt.NDArray[np.uint8], threads: int) -> None:
    """With random bytes, 1 MiB over and over."""
    pool = random_bytes(1 << 20)
    rows = memory.reshape(-1, len(pool))
    with ThreadPoolExecutor(threads) as workers:
        list(workers.map(lambda part: np.copyto(part, pool), np.array_split(rows, threads)))


def _packing(threads: int) -> float:
    """Bytes of a file's rows that are packed a second, into memory that nobody has touched yet."""
    index, _, block, nbytes, _ = FORMATS["Q4_K"]
    row = _COLS // block * nbytes
    raw = np.resize(random_bytes(1 << 20), 48 << 20)
    rows = raw.nbytes // row // 16 * 16
    seconds = math.inf
    for _ in range(2):
        memory = _cpu.Memory(raw.nbytes + (1 << 20), True)
        begin = time.perf_counter()
        _cpu.pack(index, raw.ctypes.data, row, rows, _COLS, memory.address, threads)
        seconds = min(seconds, time.perf_counter() - begin)
    return rows * row / seconds


def _last_cache() -> int:
    """Bytes of the last-level cache of a processor."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
        return int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1], 0)
    except (OSError, ValueError):
        return 32 << 20


def _with_blocks(rates: SetRates, macs: float, threads: int) -> SetRates:
    """What a block takes besides its products, from small ones whose weights are in the caches, and from a larger one.
    macs: multiply-accumulates a second of products with _STEP columns."""
    one, three = (_times(SMALL, n, threads) for n in (1, 3))
    token, deep, many, deep_many = ((b - a) / 2 for a, b in zip(one, three, strict=True))
    width = SMALL.heads * SMALL.head_dim
    fixed = token - SMALL.nbytes / (rates.fast or rates.read)["Q4_K"]
    op = _sane(fixed / (_PRODUCTS + 1.5), rates.op)
    attend_macs = _sane(_STEP * _DEPTH * 2 * width / (deep_many - many), rates.attend_macs)
    attention = _STEP * (_STEP + 1) / 2 * 2 * MEDIUM.heads * MEDIUM.head_dim
    single, double = (_times(MEDIUM, n, threads, deep=False)[2] for n in (1, 2))  # the last block does less
    besides = double - single - _STEP * MEDIUM.weights / macs - attention / attend_macs
    moved = _STEP * (16 * MEDIUM.d + 6 * MEDIUM.f) * 4
    return replace(
        rates,
        op=op,
        attend=1.5 * op,
        op_many=1.5 * op,
        rows=_sane(moved / (besides - 1.5 * op * (_PRODUCTS + 1)), rates.rows),
        cache=_sane(_DEPTH * 4 * width / (deep - token), rates.cache),
        attend_macs=attend_macs,
    )


def _sane(value: float, otherwise: float) -> float:
    """A measured number, unless noise made nonsense of it: within a factor of 30 of the built-in one."""
    return value if otherwise / 30 < value < otherwise * 30 else otherwise


def _times(shape: Shape, n_blocks: int, threads: int, deep: bool = True) -> tuple[float, float, float, float]:
    """Seconds of a token at the start of a sequence and behind _DEPTH tokens, and of a step of _STEP tokens at both;
    not deep: only of those at the start."""
    with Engine(
        Sample(shape, n_blocks), n_ctx=_DEPTH + 2 * _STEP, n_ubatch=_STEP, n_batch=_STEP, n_seq=2, threads=threads
    ) as engine:
        ids, s = np.zeros(_STEP, np.int32), engine.new_sequence()

        def best(tokens: Any, at: int, repeats: int) -> float:
            seconds = math.inf
            for _ in range(repeats):
                engine.truncate(s, at)
                begin = time.perf_counter()
                engine.evaluate(s, tokens, "last")
                seconds = min(seconds, time.perf_counter() - begin)
            return seconds

        token, many = best(ids[:1], 0, 12), best(ids, 0, 3 if deep else 2)
        if not deep:
            return token, 0.0, many, 0.0
        engine.truncate(s, 0)
        for _ in range(_DEPTH // _STEP):
            engine.evaluate(s, ids, "none")
        return token, best(ids[:1], _DEPTH, 12), many, best(ids, _DEPTH, 3)


# a GPU


def gpu_rates(number: int) -> tuple[SetRates, LinkRates]:
    """Of one GPU and of the bus to it."""
    from hybridkern.kernels.cuda.rates import CONTEXT, MANY, NARROW, WIDE, block_times, bus_times

    wide, narrow = block_times(number, WIDE), block_times(number, NARROW)
    bus, d = bus_times(number), DEFAULT_GPU
    read = _sane((WIDE.nbytes - NARROW.nbytes) / (wide.token - narrow.token), d.read_of("Q4_K")) / _WHOLE
    fixed = _WHOLE * narrow.token - NARROW.nbytes / read
    op = _sane(0.7 * fixed / _PRODUCTS, d.op)
    deep = CONTEXT * 4 * WIDE.heads * WIDE.head_dim
    moved = [MANY * (10 * s.d + 6 * s.f) * 4 / d.rows for s in (WIDE, NARROW)]
    work = MANY * (WIDE.weights - NARROW.weights)
    macs = _sane(work / (wide.many - narrow.many - (moved[0] - moved[1])), d.macs_of("Q4_K"))
    op_many = (narrow.many - moved[1] - MANY * NARROW.weights / macs) / (_PRODUCTS + 1)
    found = replace(
        d,
        read={name: rate * read / d.read[""] for name, rate in d.read.items()},
        macs={name: rate * macs / d.macs[""] for name, rate in d.macs.items()},
        op=op,
        attend=_sane(0.3 * fixed, d.attend),
        op_many=_sane(op_many, d.op_many),
        cache=_sane(deep / (wide.deep_token - wide.token), d.cache),
    )
    link = replace(DEFAULT_LINK, up=_sane(bus.up, 50e9), down=_sane(bus.down, 50e9))
    return found, link
