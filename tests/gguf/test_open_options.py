"""sha256 and mlock."""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess
import sys

import numpy as np
import pytest
from builder import I32, U16, Tensor, build

from hybridkern.errors import ArgumentError, GGUFError
from hybridkern.gguf import GGUFFile


def digest_of(path: str) -> str:
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def test_right_digest(sample, write):
    path = write(sample)
    digest = digest_of(path)
    for given in (digest, digest.upper(), f"sha256:{digest}", f" {digest} "):
        GGUFFile.open(path, sha256=given).close()


def test_wrong_digest(sample, write):
    path, wrong = write(sample), "0" * 64
    with pytest.raises(GGUFError) as e:
        GGUFFile.open(path, sha256=wrong)
    assert all(word in str(e.value) for word in (path, wrong, digest_of(path)))


def test_digest_is_checked_before_the_header(write):
    with pytest.raises(GGUFError, match="SHA-256"):
        GGUFFile.open(write(b"not a GGUF file"), sha256="0" * 64)


@pytest.mark.parametrize("given", ["", "abc", "0" * 63, "0" * 65, "g" * 64, "0" * 64 + ",", "md5:" + "0" * 32])
def test_malformed_digest(sample, write, given):
    with pytest.raises(ArgumentError, match="64 hexadecimal digits"):
        GGUFFile.open(write(sample), sha256=given)


def test_digests_of_parts(tmp_path):
    paths = []
    for i in range(2):
        keys = [("split.no", U16, i), ("split.count", U16, 2), ("split.tensors.count", I32, 2)]
        path = tmp_path / f"m-{i + 1:05d}-of-00002.gguf"
        path.write_bytes(build(keys, [Tensor(f"w{i}", 0, (1,), bytes(4))]).data)
        paths.append(str(path))
    right = [digest_of(p) for p in paths]
    GGUFFile.open(paths[0], sha256=right[0]).close()
    GGUFFile.open(paths[0], sha256=",".join(right)).close()
    with pytest.raises(GGUFError, match=r"00002-of-00002.*SHA-256"):
        GGUFFile.open(paths[0], sha256=f"{right[0]},{right[0]}")
    with pytest.raises(ArgumentError, match=r"3 digests.*2 part"):
        GGUFFile.open(paths[0], sha256=",".join([*right, right[0]]))


_LOCK = """
import os, resource, sys
from hybridkern.errors import GGUFError
from hybridkern.gguf import GGUFFile
path, limit, mapped = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "mmap"
if limit >= 0:
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
    if os.geteuid() == 0:
        os.seteuid(65534)  # root is not bound by the limit
try:
    with GGUFFile.open(path, mmap=mapped, mlock=True) as file:
        file.release("w")
        locked = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmLck"))
        print(locked, file.data("w").sum())
except GGUFError as e:
    print("error", e)
"""


@pytest.fixture
def megabyte(tmp_path) -> str:
    path = tmp_path / "large.gguf"
    path.write_bytes(build((), [Tensor("w", 24, (1 << 20,), np.ones(1 << 20, np.uint8).tobytes())]).data)
    for parent in (tmp_path, *tmp_path.parents[:2]):
        os.chmod(parent, 0o755)
    return str(path)


def lock(path: str, limit: int, mode: str) -> str:
    command = [sys.executable, "-c", _LOCK, path, str(limit), mode]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("mode", ["mmap", "read"])
def test_mlock_beyond_the_limit(megabyte, mode):
    out = lock(megabyte, 65536, mode)
    assert out.startswith("error")
    for word in (megabyte, str(1 << 20), "RLIMIT_MEMLOCK is 65536 bytes", "ulimit -l", "drop --mlock"):
        assert word in out, out


@pytest.mark.skipif(
    os.geteuid() != 0 and resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] < 2 << 20, reason="RLIMIT_MEMLOCK too low"
)
@pytest.mark.parametrize("mode", ["mmap", "read"])
def test_mlock(megabyte, mode):
    locked, total = lock(megabyte, -1, mode).split()
    assert int(locked) >= 1024 and int(total) == 1 << 20
