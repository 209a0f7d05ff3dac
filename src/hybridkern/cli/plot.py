"""A plan as a picture: the memory of every device, and the predicted time of every block. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridkern.errors import ArgumentError

if TYPE_CHECKING:
    from hybridkern import Plan

_MIB = 1 << 20
_COLOURS = {"cpu": "tab:orange"}


def new_figure(width: float, height: float, n: int = 1) -> tuple[Any, list[Any]]:
    """A figure of so many inches, and n axes in it, one below the other. Raises ArgumentError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ArgumentError(f'--plot needs matplotlib: pip install "hybridkern[plot]" ({error})') from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(n, 1, squeeze=False)[:, 0])


def save(figure: Any, path: Path) -> None:
    """Raises ArgumentError where that is not possible."""
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"--plot {path} cannot be written: {error}") from error


def draw(plan: Plan, path: Path, measured: dict[str, float]) -> None:
    """Writes the picture. measured: tokens a second of tests such as pp512 and tg64, drawn as the mean of a block."""
    figure, (memory, token, step) = new_figure(11, 9, 3)
    memory.set_title(f"{plan.model}: memory")
    widest = max((d.nbytes for d in plan.devices), default=1)
    memory.set_xlim(0, 1.25 * widest / _MIB)
    for i, d in enumerate(plan.devices):
        left = 0.0
        for what, n in sorted(d.memory.items(), key=lambda item: -item[1]):
            memory.barh(i, n / _MIB, left=left, edgecolor="white")
            if n > widest / 10:
                memory.text(left + n / _MIB / 2, i, what, ha="center", va="center", fontsize=8)
            left += n / _MIB
        if d.usable is not None and d.usable < 1.25 * widest:
            memory.plot([d.usable / _MIB] * 2, [i - 0.45, i + 0.45], color="black")
    memory.set_yticks(range(len(plan.devices)), [d.name for d in plan.devices])
    memory.set_xlabel("MiB; the line: what may be used")
    blocks = [row for row in plan.table() if row.name.startswith("blk.")]
    n = plan.assignment.n_ubatch
    for axes, title, values, tests, tokens in (
        (token, "a token, us", [1e6 * r.decode for r in blocks], "tg", 1),
        (step, f"a step of {n} tokens, ms", [1e3 * r.prefill for r in blocks], "pp", n),
    ):
        colours = [_COLOURS.get(r.device, "tab:blue" if "+" not in r.device else "tab:purple") for r in blocks]
        axes.bar(range(len(blocks)), values, color=colours)
        axes.set_title(f"predicted time of a block for {title}")
        axes.set_xlabel("block")
        rate = next((rate for test, rate in measured.items() if test.startswith(tests)), None)
        if rate is not None:
            scale = (1e6 if tests == "tg" else 1e3) * tokens / rate / len(blocks)
            axes.axhline(scale, color="black", linestyle="--", label="measured, mean of the blocks")
            axes.legend()
    save(figure, path)
