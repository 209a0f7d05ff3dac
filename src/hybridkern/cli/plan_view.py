"""A plan as tables: what lies on which device, and block by block."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from .terminal import size

if TYPE_CHECKING:
    from hybridkern import Plan
    from hybridkern.plan.plan import Row


def memory_table(plan: Plan) -> Any:
    """Bytes by device and purpose."""
    from rich.table import Table

    table = Table("device", "what", "size", "detail", title=plan.model, title_justify="left")
    for d in plan.devices:
        for what, n in sorted(d.memory.items(), key=lambda item: -item[1]):
            table.add_row(d.name, what, size(n), _detail(plan, d.name, what))
        of = "" if d.usable is None or d.usable > 1 << 50 else f"of {size(d.usable)} that may be used"
        table.add_row(f"{d.name}: all", "", size(d.nbytes), of)
        if d.context:
            table.add_row("", "CUDA itself", size(d.context), d.label)
        table.add_section()
    return table


def _detail(plan: Plan, device: str, what: str) -> str:
    if what == "KV cache":
        n = sum(kv == device for kv in plan.assignment.kv)
        return f"{n} blocks, {plan.n_ctx} tokens, {plan.kv_type}"
    if what == "buffers":
        return f"steps of {plan.assignment.n_ubatch} tokens"
    if what == "weights" and device == "cpu":
        return "packed" if plan.packed else "as they lie in the file"
    return ""


def block_table(plan: Plan) -> Any:
    """Device, kernel set, bytes and predicted time of every block; blocks alike share a row."""
    from rich.table import Table

    table = Table(
        "block", "device", "KV", "kernels", "weights", "KV cache", "token", f"{plan.assignment.n_ubatch} tokens"
    )
    for rows in _alike(plan.table()):
        first, last = rows[0], rows[-1]
        name = first.name if len(rows) == 1 else f"{first.name}-{last.name.split('.')[-1]}"
        each = "" if len(rows) == 1 else " each"
        weights = " + ".join(size(n) for n in first.weights.values())
        table.add_row(
            name,
            first.device + (" (streamed, kept)" if first.kept else " (streamed)" if first.streamed else ""),
            first.kv,
            first.kernels,
            weights + each,
            size(first.cache) if first.cache else "",
            _time(first.decode),
            _time(first.prefill),
        )
    return table


def _alike(rows: list[Row]) -> list[list[Row]]:
    def key(r: Row) -> Any:
        kind = r.name.split(".")[0]
        return (
            kind,
            r.device,
            r.kv,
            r.kernels,
            tuple(r.weights.items()),
            r.cache,
            r.streamed,
            r.kept,
            round(r.decode, 7),
        )

    return [list(group) for _, group in groupby(rows, key)]


def _time(seconds: float) -> str:
    if not seconds:
        return ""
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
