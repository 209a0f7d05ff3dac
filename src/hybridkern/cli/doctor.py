"""Describe this machine as hybridkern sees it: processor, kernel sets, threads, memory, and what would run."""

from __future__ import annotations

import argparse
import os
import platform
import resource

from .gpu_facts import gpu_facts
from .rate_facts import rate_facts
from .terminal import console, size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument("--kernels", action="store_true", help="say which set every format's kernels come from")
    parser.add_argument(
        "--rates", action="store_true", help="measure this machine's rates anew, two seconds: what plans are made with"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="tracebacks with errors")


def run(args: argparse.Namespace) -> int:
    """One fact a line."""
    from rich.table import Table

    from hybridkern import __version__
    from hybridkern.kernels import _cpu
    from hybridkern.kernels.cpu.selection import VARIABLE, chosen_name, runnable, why_not
    from hybridkern.runtime.footprint import available_memory, total_memory
    from hybridkern.runtime.machine import cpu_name
    from hybridkern.runtime.threads import cgroup_cores, default_threads

    chosen, can = chosen_name(), runnable()
    table = Table(show_header=False)
    table.add_row("hybridkern", f"{__version__}, Python {platform.python_version()}, {platform.platform()}")
    table.add_row("processor", cpu_name())
    for name, _, _ in _cpu.kernel_sets():
        asked = f", where {VARIABLE} names it: prompts in bf16" if name in _cpu.rounding_sets() else ""
        state = why_not(name) if name not in can else "usable" + asked
        forced = f", forced by {VARIABLE}" if os.environ.get(VARIABLE) else ""
        table.add_row(f"kernel set {name}", state + (f"; in use{forced}" if name == chosen else ""))
    quota = cgroup_cores()
    limit = "" if quota is None else f", control group: {quota:g} cores"
    table.add_row("threads", f"{default_threads()} by default (affinity: {_affinity()} logical CPUs{limit})")
    free, total = available_memory(), total_memory()
    table.add_row("memory", f"{_size(free)} available of {_size(total)}")
    table.add_row("memory that may be locked", _memlock())
    for name, fact in gpu_facts():
        table.add_row(name, fact)
    for name, fact in rate_facts(args.rates):
        table.add_row(name, fact)
    console().print(table)
    if args.kernels:
        _show_kernels(chosen)
    return 0


def _show_kernels(chosen: str) -> None:
    from rich.table import Table

    from hybridkern.kernels.cpu.selection import table_named

    origins = table_named(chosen).origins()
    (ops,) = origins.pop("ops")
    table = Table("format", "matrix x vector", "matrix x matrix", "dequantise", "raw rows x vector")
    for name, sets in origins.items():
        table.add_row(name, *(isa if isa != "none" else "packed on the way" for isa in sets))
    table.add_section()
    table.add_row("float operations", ops, ops, ops, "")
    console().print(table)


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memlock() -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return "no limit" if limit == resource.RLIM_INFINITY else f"{size(limit)} (--mlock needs the model's size)"


def _size(n: int | None) -> str:
    return "unknown" if n is None else size(n)
