"""The default number of threads, on made-up machines."""

from __future__ import annotations

import pytest

from hybridkern.runtime.threads import cgroup_cores, default_threads, usable_cores


def machine(root, *, group="0::/\n", files=None, cores=None):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(group)
    for path, text in (files or {}).items():
        at = root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text)
    for cpu, siblings in (cores or {}).items():
        at = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        at.mkdir(parents=True)
        (at / "core_cpus_list").write_text(siblings + "\n")
    return root


@pytest.mark.parametrize(
    ("text", "cores"), [("765000 100000\n", 7), ("max 100000\n", 16), ("50000 100000\n", 1), ("200000\n", 2), ("x", 16)]
)
def test_cgroup_v2(tmp_path, text, cores):
    root = machine(tmp_path, files={"sys/fs/cgroup/cpu.max": text})
    assert usable_cores(root, range(16)) == cores


def test_cgroup_v2_takes_the_least_of_all_levels(tmp_path):
    files = {
        "sys/fs/cgroup/a/cpu.max": "350000 100000",
        "sys/fs/cgroup/a/b/cpu.max": "max 100000",
        "sys/fs/cgroup/a/b/c/cpu.max": "800000 100000",
    }
    root = machine(tmp_path, group="0::/a/b/c\n", files=files)
    assert cgroup_cores(root) == 3.5


def test_cgroup_v1(tmp_path):
    files = {
        "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us": "450000",
        "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000",
    }
    group = "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n"
    assert usable_cores(machine(tmp_path, group=group, files=files), range(8)) == 4


def test_cgroup_v1_without_limit_and_outside_the_mount(tmp_path):
    files = {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}
    assert cgroup_cores(machine(tmp_path, group="4:cpu:/not/visible\n", files=files)) is None


def test_physical_cores_and_affinity(tmp_path):
    cores = {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"}
    root = machine(tmp_path, cores=cores)
    assert default_threads(root, range(8)) == 4
    assert default_threads(root, [0, 4]) == 1
    assert usable_cores(root, [0, 4]) == 2


def test_nothing_is_known(tmp_path):
    assert default_threads(tmp_path, range(3)) == 3
    assert default_threads() >= 1
