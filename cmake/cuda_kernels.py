"""Build steps of the CUDA kernels: compile one source for one architecture, and collect what all kernels use.

cuda_kernels.py compile NVCC sm_90a|compute_80 SOURCE OBJECT     writes OBJECT and OBJECT.json
cuda_kernels.py collect NVCC IMAGES.JSON REPORT...               prints the table of registers and spills
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

FLAGS = ("-std=c++17", "-diag-suppress", "177")


def resources(log: str) -> dict[str, dict[str, int]]:
    """kernel -> registers, spilled bytes (stores and loads), stack and shared memory, from what `ptxas -v` prints."""
    found: dict[str, dict[str, int]] = {}
    name = ""
    for line in log.splitlines():
        if entry := re.search(r"Compiling entry function '(\w+)'", line):
            name = entry[1]
            found[name] = {"registers": 0, "stack": 0, "spill_stores": 0, "spill_loads": 0, "shared": 0}
        elif name and (
            frame := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill", line)
        ):
            found[name]["stack"], found[name]["spill_stores"], found[name]["spill_loads"] = map(int, frame.groups())
        elif name and (used := re.search(r"Used (\d+) registers", line)):
            found[name]["registers"] = int(used[1])
            shared = re.search(r"(\d+) bytes smem", line)
            found[name]["shared"] = int(shared[1]) if shared else 0
            name = ""
    return found


def compile_one(nvcc: str, code: str, source: str, to: str) -> int:
    kind = "-cubin" if code.startswith("sm_") else "-ptx"
    words = [nvcc, kind, *FLAGS, f"-arch={code}", "-Xptxas", "-v", "-o", to, source]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
        return done.returncode
    log = done.stdout + done.stderr
    used = resources(log)
    # A source may have no kernels for an architecture; ptxas then reports on global memory alone.
    if kind == "-cubin" and not used and "bytes gmem" not in log:
        sys.stderr.write(f"ptxas said nothing of the kernels in {source}:\n{log}")
        return 1
    for line in log.splitlines():
        if "warning" in line.lower():
            print(line)
    Path(f"{to}.json").write_text(json.dumps({"code": code, "kernels": used}))
    return 0


def collect(nvcc: str, to: str, reports: list[str]) -> int:
    version = re.search(
        r"release (\d+\.\d+)", subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    )
    if version is None:
        sys.stderr.write(f"{nvcc} --version does not say which release it is\n")
        return 1
    kernels: dict[str, dict[str, dict[str, int]]] = {}
    for report in reports:
        one = json.loads(Path(report).read_text())
        kernels.setdefault(one["code"], {}).update(one["kernels"])
    Path(to).write_text(json.dumps({"compiler": version[1], "code": sorted(kernels), "kernels": kernels}, indent=1))
    print(table(kernels))
    return 0


def table(kernels: dict[str, dict[str, dict[str, int]]]) -> str:
    """Registers and spills of every kernel for every architecture."""
    lines = []
    for code, of in sorted(kernels.items()):
        for name, k in sorted(of.items()):
            spills = (
                f"{k['spill_stores']}+{k['spill_loads']} bytes spilled" if k["spill_stores"] or k["spill_loads"] else ""
            )
            lines.append(f"{code:8} {name:36} {k['registers']:3} registers {k['shared']:6} shared  {spills}".rstrip())
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1] == "compile":
        sys.exit(compile_one(*sys.argv[2:6]))
    sys.exit(collect(sys.argv[2], sys.argv[3], sys.argv[4:]))
