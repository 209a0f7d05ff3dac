"""Describe a model file: metadata, tensors by type, sizes. Tensor data are not read."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import Any

from .flags import add_model
from .terminal import console, note, size, write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add_model(parser)
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    """Open the file and tell what it says."""
    from hybridkern.gguf import GGUFFile, require_finite
    from hybridkern.runtime.locate import locate

    found = locate(args.model, note)
    if found.note:
        note(found.note)
    with GGUFFile.open(found.path, mmap=True, mlock=args.mlock, sha256=args.sha256) as file:
        if args.validate:
            require_finite(file)
            note("every scale is finite")
        if args.json:
            write(json.dumps(_record(file), ensure_ascii=False) + "\n")
        else:
            _show(file, args.tensors)
    return 0


def _by_type(file: Any) -> list[tuple[str, int, int, int]]:
    """(type, tensors, weights, bytes), the largest first."""
    n, weights, nbytes = Counter[str](), Counter[str](), Counter[str]()
    for tensor in file.tensors.values():
        name = tensor.type.name
        n[name] += 1
        nbytes[name] += tensor.nbytes
        weights[name] += tensor.nbytes // tensor.type.block_bytes * tensor.type.block_size
    return [(name, n[name], weights[name], nbytes[name]) for name, _ in nbytes.most_common()]


def _record(file: Any) -> dict[str, Any]:
    return {
        "paths": list(file.paths),
        "version": file.version,
        "bytes": file.nbytes,
        "metadata": {key: _plain(file.metadata[key]) for key in file.metadata},
        "types": [
            {"type": name, "tensors": n, "weights": weights, "bytes": nbytes}
            for name, n, weights, nbytes in _by_type(file)
        ],
        "tensors": [
            {"name": t.name, "type": t.type.name, "shape": [int(d) for d in t.shape], "bytes": t.nbytes}
            for t in file.tensors.values()
        ],
    }


def _show(file: Any, with_tensors: bool) -> None:
    from rich.table import Table

    out = console()
    for path in file.paths:
        out.print(f"{path}  (GGUF v{file.version})", soft_wrap=True, markup=False)
    table = Table("key", "value", title="metadata", title_justify="left")
    for key in file.metadata:
        table.add_row(key, _short(file.metadata[key]))
    out.print(table)
    table = Table("type", "tensors", "weights", "size", title="tensors by type", title_justify="left")
    rows = _by_type(file)
    for name, n, weights, nbytes in rows:
        table.add_row(name, str(n), f"{weights:,}", size(nbytes))
    total = sum(row[2] for row in rows)
    nbytes = sum(row[3] for row in rows)
    bits = f"{8 * nbytes / total:.2f} bits a weight" if total else ""
    table.add_section()
    table.add_row("all", str(len(file.tensors)), f"{total:,}", f"{size(nbytes)}, {bits}")
    out.print(table)
    if with_tensors:
        table = Table("tensor", "type", "shape", "size", title_justify="left")
        for tensor in file.tensors.values():
            shape = " x ".join(str(int(d)) for d in tensor.shape)
            table.add_row(tensor.name, tensor.type.name, shape, size(tensor.nbytes))
        out.print(table)


def _plain(value: Any) -> Any:
    """Something that JSON can hold."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value


def _short(value: Any) -> str:
    """A value on one line of a table; rich's markup characters escaped."""
    from rich.markup import escape

    value = _plain(value)
    if isinstance(value, list):
        head = ", ".join(repr(item) for item in value[:4])
        text = f"[{head}{', ...' if len(value) > 4 else ''}] ({len(value)})"
    else:
        text = repr(value) if isinstance(value, str) else str(value)
    return escape(text if len(text) <= 200 else text[:200] + "...")
