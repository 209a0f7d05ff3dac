"""Runs a fuzz target: the corpus first, then changed inputs, with limits on time and memory.

    python -m fuzz.run reader -n 1000000              # guided by coverage, through atheris
    python -m fuzz.run text -n 2000 --engine plain    # the mutator alone, nothing to install, the same every time
    python -m fuzz.run reader --replay FILE           # one input

A finding is anything but an error of the package's own: another exception, the death of the process, more than two
seconds, an allocation that passes 1 GiB. The input is then kept, its path printed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from .mutate import MAX_BYTES, mutated

SECONDS = 2.0  # of processor time for one input, whatever else the machine does
BLOCKED_SECONDS = 20  # by the clock
MEMORY = 1 << 30
CORPUS = Path(__file__).parent / "corpus"


def _limit_memory() -> None:
    with open("/proc/self/statm") as f:
        now = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    """The process dies of SIGPROF if what is inside takes too much processor time."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)


def corpus_of(target: str, more: Path | None = None) -> list[bytes]:
    """The committed corpus of a target, and the inputs in another folder."""
    folders = [CORPUS / target, *([more] if more else [])]
    return [path.read_bytes() for folder in folders for path in sorted(folder.iterdir()) if path.is_file()]


def nth_input(corpus: list[bytes], seed: int, n: int, keys_only: bool) -> bytes:
    """Input number n of the plain engine: the corpus itself, then changed pieces of it."""
    if n < len(corpus):
        return corpus[n]
    rng = Random((seed << 40) + n)
    raw = rng.choice(corpus)
    for _ in range(rng.choice((1, 1, 2, 4))):
        raw = mutated(raw, rng, corpus, keys_only)
    return raw


def _plain(target: str, args: argparse.Namespace, folder: str) -> None:
    from .targets import TARGETS, quiet

    run, corpus = TARGETS[target], corpus_of(target, args.inputs)
    quiet()
    _limit_memory()
    at = Path(folder, "at")
    with open(at, "wb", buffering=0) as progress:
        for n in range(args.first, args.first + args.n):
            raw = nth_input(corpus, args.seed, n, target == "text")
            os.pwrite(progress.fileno(), b"%020d" % n, 0)
            signal.setitimer(signal.ITIMER_REAL, BLOCKED_SECONDS)
            with _time_limit():
                run(raw, folder)
    signal.setitimer(signal.ITIMER_REAL, 0)


def _atheris(target: str, args: argparse.Namespace, folder: str) -> None:
    import atheris

    with atheris.instrument_imports(include=["hybridkern"]):
        from .targets import TARGETS, quiet

        run = TARGETS[target]
    corpus = corpus_of(target, args.inputs)

    def change(raw: bytes, max_size: int, seed: int) -> bytes:
        rng = Random(seed)
        if rng.random() < 0.05:
            return atheris.Mutate(raw, max_size)
        return mutated(raw, rng, corpus, target == "text")[:max_size]

    options = [
        "fuzz",
        f"-runs={args.n}",
        f"-timeout={BLOCKED_SECONDS}",
        f"-max_len={MAX_BYTES}",
        f"-seed={args.seed}",
        "-rss_limit_mb=1536",
        "-handle_bus=0",  # the reader has a handler of its own
        "-print_final_stats=1",
        "-len_control=0",
        "-reload=0",
        f"-artifact_prefix={args.keep}/",
        str(args.inputs),
    ]
    last = os.open(os.path.join(folder, "last"), os.O_WRONLY | os.O_CREAT)

    def one(raw: bytes) -> None:
        os.pwrite(last, raw, 0)
        os.ftruncate(last, len(raw))
        with _time_limit():
            run(raw, folder)

    quiet()
    _limit_memory()
    atheris.Setup(options, one, custom_mutator=change)
    atheris.Fuzz()


def _worker(args: argparse.Namespace) -> None:
    if args.replay:
        from .targets import TARGETS, quiet

        quiet()
        _limit_memory()
        with _time_limit():
            TARGETS[args.target](args.replay.read_bytes(), args.worker)
    elif args.engine == "plain":
        _plain(args.target, args, args.worker)
    else:
        _atheris(args.target, args, args.worker)


def _kept(args: argparse.Namespace, folder: Path) -> str:
    if args.replay:
        return f"{args.replay}"
    if args.engine == "atheris":  # which writes its findings itself, unless a signal ends it that it does not handle
        raw = (folder / "last").read_bytes()
        path = args.keep / f"{args.target}-{hashlib.sha256(raw).hexdigest()[:16]}"
        path.write_bytes(raw)
        return f"{path}"
    n = int((folder / "at").read_text())
    path = args.keep / f"{args.target}-{args.seed}-{n}"
    path.write_bytes(nth_input(corpus_of(args.target, args.inputs), args.seed, n, args.target == "text"))
    return f"{path} (execution {n})"


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m fuzz.run", description=__doc__.splitlines()[0])
    p.add_argument("target", choices=["reader", "text"])
    p.add_argument("-n", type=int, default=10_000, help="executions")
    p.add_argument("--engine", choices=["atheris", "plain"], default="atheris")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--first", type=int, default=0, help="first execution of the plain engine")
    p.add_argument("--inputs", type=Path, help="more inputs; atheris puts what it discovers there")
    p.add_argument("--keep", type=Path, default=Path("fuzz-findings"), help="where inputs of findings go")
    p.add_argument("--replay", type=Path, help="run this input only")
    p.add_argument("--worker", help=argparse.SUPPRESS)
    return p.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the target in a process of its own; 0 if nothing was found."""
    args = _arguments(argv)
    if args.worker:
        _worker(args)
        return 0
    args.keep.mkdir(parents=True, exist_ok=True)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="hk-fuzz-", dir=memory))
    try:
        if args.engine == "atheris" and not args.replay:
            args.inputs = args.inputs or folder / "inputs"
            args.inputs.mkdir(parents=True, exist_ok=True)
            for path in (CORPUS / args.target).iterdir():
                shutil.copy(path, args.inputs / path.name)
        (folder / "files").mkdir()
        own = {"inputs", "keep", "replay", "worker", "target"}
        flags: list[Any] = [f"--{k}={v}" if len(k) > 1 else f"-{k}{v}" for k, v in vars(args).items() if k not in own]
        flags += [f"--{k}={v}" for k, v in vars(args).items() if k in own - {"worker", "target"} and v is not None]
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "fuzz.run", args.target, *flags, f"--worker={folder / 'files'}"], check=False
        )
        seconds = time.monotonic() - start
        if done.returncode == 0:
            print(f"{args.target}, {args.engine}: {args.n} executions in {seconds:.1f} s, nothing found")
            return 0
        why = f"status {done.returncode}"
        if done.returncode < 0:
            with contextlib.suppress(ValueError):
                why = signal.Signals(-done.returncode).name
        print(f"{args.target}: found after {seconds:.1f} s: {why}; the input is in {_kept(args, folder / 'files')}")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
