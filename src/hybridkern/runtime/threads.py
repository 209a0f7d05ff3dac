"""How many threads to use by default: min(affinity, cgroup quota rounded down, physical cores), at least 1."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

MAX_THREADS = 256


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _ancestors(mount: Path, group: str) -> Iterator[Path]:
    """The directories of a group and of the groups above it. In a container the path may not exist: then the mount."""
    at = mount / group.strip("/")
    while at != mount and mount in at.parents:
        yield at
        at = at.parent
    yield mount


def _quota(directory: Path) -> float | None:
    """Cores that one cgroup directory allows, v2 (cpu.max) or v1 (cpu.cfs_quota_us); None for no limit."""
    text = _read(directory / "cpu.max")
    if text is not None:
        quota, period = [*text.split(), "100000"][:2]
    else:
        quota = _read(directory / "cpu.cfs_quota_us") or "max"
        period = _read(directory / "cpu.cfs_period_us") or "100000"
    try:
        cores = float(quota) / float(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return None
    return cores if cores > 0 else None


def cgroup_cores(root: Path = Path("/")) -> float | None:
    """Cores that the control groups of this process allow, the least of all levels; None for no limit."""
    found: list[float] = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        _, controllers, group = parts
        mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        if controllers:
            if "cpu" not in controllers.split(","):
                continue
            mounts = [f"sys/fs/cgroup/{controllers}", "sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"]
        for mount in mounts:
            found += [q for d in _ancestors(root / mount, group) if (q := _quota(d)) is not None]
    return min(found) if found else None


def physical_cores(cpus: Collection[int], root: Path = Path("/")) -> int:
    """Distinct cores among these logical CPUs: two hyperthreads of a core count once."""
    cores = set()
    for cpu in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = _read(topology / "core_cpus_list") or _read(topology / "thread_siblings_list")
        cores.add(siblings or str(cpu))
    return len(cores)


def usable_cores(root: Path = Path("/"), affinity: Collection[int] | None = None) -> int:
    """Logical CPUs that this process may keep busy at once."""
    cpus = _affinity() if affinity is None else affinity
    quota = cgroup_cores(root)
    return max(1, len(cpus) if quota is None else min(len(cpus), int(quota)))


def default_threads(root: Path = Path("/"), affinity: Collection[int] | None = None) -> int:
    """The number of threads to use where the user names none."""
    cpus = _affinity() if affinity is None else affinity
    return min(usable_cores(root, cpus), max(1, physical_cores(cpus, root)), MAX_THREADS)


def _affinity() -> Collection[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)
