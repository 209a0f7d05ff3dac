"""The architecture, as rules that hold: who imports whom, who prints, who knows a device, how long a file may be."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "hybridkern"
# A room may import itself, rooms of a lower rank, and those of its own rank that are listed beside it.
RANK = {
    "cli": 4, "measure": 3, "runtime": 2, "convert": 2, "quantize": 1, "plan": 1, "model": 1, "text": 1, "gguf": 0,
    "kernels": 0,
}  # fmt: skip
BESIDE = {"plan": {"model"}, "gguf": {"kernels"}}  # gguf: the guard against SIGBUS is C, in the extension module
# Public faces, which any room may be behind: they import lazily or only the errors.
FACES = {"__init__.py", "__main__.py", "errors.py", "quants.py"}
# Files that are longer than the aim, each with its reason.
LONG: dict[str, str] = {}
PYTHON_LINES, KERNEL_LINES = 300, 350

FILES = sorted(PACKAGE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(), str(path)) for path in FILES}


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room_of(path: Path) -> str | None:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else None


def imported(path: Path) -> list[tuple[int, str]]:
    """(line, absolute module) of every import in a file, those inside of functions and for type checkers included."""
    package = ["hybridkern", *path.relative_to(PACKAGE).parts[:-1]]
    found = []
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found.append((node.lineno, module))
            if module == "hybridkern" or node.module is None:
                found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return found


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_run_one_way(path):
    room = room_of(path)
    if room is None:
        assert path.name in FACES, f"{path.name} stands outside of the rooms"
        return
    for line, module in imported(path):
        parts = module.split(".")
        if parts[0] != "hybridkern" or len(parts) < 2 or parts[1] not in RANK:
            continue
        other = parts[1]
        allowed = other == room or RANK[other] < RANK[room] or other in BESIDE.get(room, ())
        assert allowed, f"{name_of(path)}:{line}: {room} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_the_cuda_set_knows_a_device(path):
    if name_of(path).startswith("kernels/cuda"):
        return
    for line, module in imported(path):
        assert module.split(".")[0] != "pycuda", f"{name_of(path)}:{line} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_the_command_line_prints(path):
    if room_of(path) == "cli":
        return
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print", f"{name_of(path)}:{node.lineno} prints"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sys":
            assert node.attr not in ("stdout", "stderr"), f"{name_of(path)}:{node.lineno} writes to sys.{node.attr}"


def test_kernels_neither_print_nor_exit():
    for path in sorted((ROOT / "csrc").rglob("*.[ch]")):
        text = path.read_text()
        text = re.sub(r"\bv?snprintf\(", "", text)  # into a buffer: the text of an error, for whoever raises it
        for word in ("printf(", "exit(", "abort("):
            assert word not in text, f"{path.relative_to(ROOT)} calls {word[:-1]}"


def test_no_instruction_set_conditions_in_bodies():
    for path in sorted((ROOT / "csrc" / "cpu").rglob("*.[ch]")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.lstrip().startswith("#") and "if" in line:
                assert "__AVX" not in line and "__SSE" not in line, f"{path.relative_to(ROOT)}:{number}: {line}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_python_files_are_small_and_documented(path):
    lines = len(path.read_text().splitlines())
    assert lines <= PYTHON_LINES or name_of(path) in LONG, f"{name_of(path)} has {lines} lines"
    assert ast.get_docstring(TREES[path]), f"{name_of(path)} does not say what it is for"


def test_kernel_files_are_small():
    for path in sorted((ROOT / "csrc").rglob("*.[ch]")):
        lines = len(path.read_text().splitlines())
        name = path.relative_to(ROOT).as_posix()
        assert lines <= KERNEL_LINES or name in LONG, f"{name} has {lines} lines"


def test_importing_the_package_is_quick():
    """Nothing heavy comes with the name: NumPy and the rooms wait until they are used."""
    import subprocess
    import sys

    code = "import sys, hybridkern; print(sorted(m for m in sys.modules if m in ('numpy', 'jinja2', 'rich', 'gguf')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
