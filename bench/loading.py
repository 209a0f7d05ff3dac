#!/usr/bin/env python3
"""How long a model takes to load from the page cache, packed and as raw rows, and how much memory it holds meanwhile.

    python bench/loading.py -m model.gguf [-t 2] [-r 3]

Each load is a process of its own, in turns. Processor seconds stand beside the clock's, for hosts that are busy. Before
a load that packs, as much memory is touched and freed again: on virtual machines the first touch of a page that the
host has not given yet costs several times the packing, whoever does it. Memory is read in a round of its own, since
reading it takes time: the highest anonymous and resident bytes over those before, as parts of the file's size.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time

MODES = ("packed", "raw")


def held() -> tuple[int, int]:
    """(anonymous, resident) bytes of this process."""
    with open("/proc/self/smaps_rollup") as file:
        text = file.read()
    anonymous, resident = (re.search(rf"^{key}: +(\d+)", text, re.M) for key in ("Anonymous", "Rss"))
    assert anonymous is not None and resident is not None
    return 1024 * int(anonymous[1]), 1024 * int(resident[1])


def load(path: str, threads: int, mode: str, watch: bool) -> None:
    """One load in this process; prints seconds, processor seconds, and two parts of the file's size."""
    import hybridkern as hk
    from hybridkern.kernels import _cpu
    from hybridkern.runtime.loading import load as load_model

    size = os.path.getsize(path)
    if mode == "packed":
        memory = _cpu.Memory(size, True)
        with memoryview(memory).cast("B") as view:
            view[::4096] = bytes(-(-len(view) // 4096))
        del view, memory
    before, peak = held(), [0, 0]

    def note(done: int, total: int) -> None:
        if watch:
            peak[:] = [max(a, b - c) for a, b, c in zip(peak, held(), before, strict=True)]

    clock, processor = time.perf_counter(), time.process_time()
    with load_model(path, threads=threads, n_ctx=512, repack=mode == "packed", progress=note) as model:
        clock, processor = time.perf_counter() - clock, time.process_time() - processor
        note(0, 0)
        assert isinstance(model, hk.Model)
    print(clock, processor, peak[0] / size, peak[1] / size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-r", "--rounds", type=int, default=3)
    parser.add_argument("--child", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--watch", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        load(args.model, args.threads, args.child, args.watch)
        return
    made: dict[str, list[list[float]]] = {mode: [] for mode in MODES}
    for r in range(args.rounds + 1):
        for mode in MODES:
            command = [sys.executable, __file__, "-m", args.model, "-t", str(args.threads), "--child", mode]
            command += ["--watch"] if r == args.rounds else []
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            made[mode].append([float(x) for x in out.split()])
    for mode, runs in made.items():
        clock, processor = (statistics.median(run[i] for run in runs[:-1]) for i in (0, 1))
        print(
            f"{mode:7} {clock:6.2f} s by the clock, {processor:6.2f} s of processors; at most "
            f"{runs[-1][2]:.2f} of the file anonymous, {runs[-1][3]:.2f} resident"
        )


if __name__ == "__main__":
    main()
