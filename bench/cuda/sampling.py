"""Times the choice of a token on a GPU: the likeliest, and the k likeliest, in us of a launch in a graph.

python bench/cuda/sampling.py
"""

from __future__ import annotations

import numpy as np
import pycuda.driver as cuda

from hybridkern.kernels.cuda import launches
from hybridkern.kernels.cuda.driver import Event, Kernels, Memory, Stream
from hybridkern.kernels.cuda.images import image_files


def microseconds(kernels: Kernels, stream: Stream, one: launches.Launch) -> float:
    """Of one launch among 20, which cannot overlap."""
    graph = stream.capture(kernels, [one] * 20, early=False)
    graph.launch(stream)
    times = []
    for _ in range(7):
        start, end = Event(), Event()
        start.record(stream)
        graph.launch(stream)
        end.record(stream)
        times.append(end.since(start))
    graph.destroy()
    return min(times) * 1e3 / 20


def main() -> None:
    cuda.init()
    context = cuda.Device(0).retain_primary_context()
    context.push()
    try:
        kernels, stream = Kernels({p.stem: p.read_bytes() for p in image_files()}), Stream()
        memory = Memory(64 << 20)
        at = memory.address
        stream.fill(at, 0, memory.nbytes)
        stream.upload(at, np.array([1, 1], np.int32))
        step = {"counts": at, "positions": at + 4096, "outputs": at + 4096}
        for width in (32000, 128256, 262144):
            x = (3 * np.random.default_rng(0).standard_normal(width)).astype(np.float32)
            stream.upload(at + (1 << 20), x)
            common = {"logits": at + (1 << 20), "width": width, "stride": width, "arrived": at + 8192}
            scratch, out = at + (32 << 20), at + (16 << 20)
            times = [launches.argmax(step, 1, best=out, value=out + 64, partial=scratch, **common)]
            for k in (40, 64, 256):
                fields = {"ids": out, "values": out + 4096, "total": out + 8192, "partial": scratch}
                times.append(launches.topk(step, 1, k, **fields, **common))
            row = " ".join(f"{microseconds(kernels, stream, one):6.2f}" for one in times)
            print(f"{width:6d} logits: argmax, top-k of 40, 64, 256: {row} us", flush=True)
    finally:
        context.pop()


if __name__ == "__main__":
    main()
