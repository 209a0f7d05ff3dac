"""How fast a GPU is with the kernels of this build: small stacks of blocks run as models run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hybridkern.kernels.interface import Batch
from hybridkern.kernels.sample import Sample, Shape

from .cuda_set import CudaSet, CudaTape
from .device import Device
from .driver import Event, HostMemory, Memory, Stream

WIDE, NARROW = Shape(4096, 11008, 32, 128), Shape(1024, 2816, 8, 128)
MANY = 512  # tokens of a step with many columns
CONTEXT = 2048
_COPY = 64 << 20  # bytes
_SMALL_COPY = 16 << 10


@dataclass(frozen=True)
class BlockTimes:
    """Seconds of a block, and of what is not a block: a token at the start of a sequence, a token behind `CONTEXT`
    others, a step of MANY tokens."""

    token: float
    deep_token: float
    many: float
    rest: float


def block_times(device: int, shape: Shape, n_blocks: int = 3) -> BlockTimes:
    """Measured as the difference between n_blocks and one."""
    cuda = CudaSet(device)
    few, all_ = (_times(cuda, shape, n) for n in (1, n_blocks))
    token, deep, many = ((b - a) / (n_blocks - 1) for a, b in zip(few, all_, strict=True))
    return BlockTimes(token, deep, many, few[0] - token)


def _times(cuda: CudaSet, shape: Shape, n_blocks: int) -> tuple[float, float, float]:
    made = Sample(shape, n_blocks)
    ops, logits = made.ops()
    pages = CONTEXT // 128
    tape = cuda.lower(
        ops, logits=logits, specs=made.kv_specs, n_pages=pages, n_seq=1, max_pages=pages, max_rows=MANY,
        max_outputs=1,
    )  # fmt: skip
    try:
        return _step(tape, 1, 0, 20), _step(tape, 1, CONTEXT - 1, 20), _step(tape, MANY, 0, 4)
    finally:
        tape.close()


def _step(tape: CudaTape, n: int, first: int, repeats: int) -> float:
    """Seconds of a step of n tokens at position `first`, queued one behind the other; the best of three."""
    tokens = np.zeros(n, np.int32)
    batch = Batch(tokens, np.arange(first, first + n, dtype=np.int32), tokens, np.array([n - 1], np.int32))
    table = np.arange(CONTEXT // 128, dtype=np.int32)[None]
    best = 1e9
    tape.start(batch, table)
    tape.wait()
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(repeats):
            tape.start(batch, table)
        tape.wait()
        best = min(best, (time.perf_counter() - begin) / repeats)
    return best


@dataclass(frozen=True)
class BusTimes:
    """Bytes a second to and from the device, page-locked, and seconds of a small copy there and back."""

    up: float
    down: float
    round_trip: float


def bus_times(device: int) -> BusTimes:
    """Between page-locked memory and the device."""
    d = Device.get(device)
    return d.run(_bus, d)


def _bus(d: Device) -> BusTimes:
    host, there = HostMemory(_COPY, d.later), Memory(_COPY, "calibration")
    stream = Stream()
    try:
        data = host.view(0, _COPY)
        data[:] = 1
        up = _rate(stream, lambda: stream.upload(there.address, data))
        down = _rate(stream, lambda: stream.download(data, there.address))
        small = data[:_SMALL_COPY]
        best = 1e9
        for _ in range(50):
            begin = time.perf_counter()
            stream.upload(there.address, small)
            stream.download(small, there.address)
            stream.wait()
            best = min(best, time.perf_counter() - begin)
        return BusTimes(up, down, best)
    finally:
        stream.destroy()
        there.free()


def _rate(stream: Stream, queue: Callable[[], None]) -> float:
    start, end = Event(), Event()
    best = 1e9
    for _ in range(3):
        start.record(stream)
        queue()
        end.record(stream)
        best = min(best, end.since(start) / 1e3)
    start.destroy()
    end.destroy()
    return _COPY / best
