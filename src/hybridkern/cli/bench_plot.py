"""Measured rates as a picture: over whatever was swept most, a line for every combination of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hybridkern.errors import ArgumentError

from .plot import new_figure, save

_KINDS = (("prompts", True, False), ("generation", False, True), ("a prompt and an answer", True, True))
# Columns of rows that may be swept, and what is written at an axis.
_AXES = {
    "n_depth": "tokens of context before", "n_prompt": "prompt tokens", "n_gen": "tokens generated",
    "n_threads": "threads", "n_threads_batch": "threads for prompts", "n_ubatch": "ubatch", "n_batch": "batch",
    "type_k": "cache", "n_gpu_layers": "-ngl", "n_cpu_ffn": "--n-cpu-ffn", "place": "--place", "flash_attn": "-fa",
}  # fmt: skip
_WIDE = 8  # from the lowest to the highest value: a logarithmic axis


def check_plot(path: Path | None) -> None:
    """Before anything is measured: raises ArgumentError where no picture can be made."""
    if path is None:
        return
    known = new_figure(1, 1)[0].canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise ArgumentError(f"--plot {path}: the name ends with none of {', '.join(sorted(known))}")
    if not path.resolve().parent.is_dir():
        raise ArgumentError(f"--plot {path}: there is no folder {path.resolve().parent}")


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Writes the picture: medians, from the lowest to the highest rate."""
    kinds = [(name, [r for r in rows if (r["n_prompt"] > 0, r["n_gen"] > 0) == (p, g)]) for name, p, g in _KINDS]
    kinds = [(name, found) for name, found in kinds if found]
    figure, axes = new_figure(8, 4 * len(kinds), len(kinds))
    for ax, (name, found) in zip(axes, kinds, strict=True):
        ax.set_title(f"{name}: {found[0]['model']}")
        ax.set_ylabel("tokens/s")
        _draw_kind(ax, found)
        ax.set_ylim(bottom=0)
        ax.grid(alpha=0.3)
        ax.legend(fontsize=8)
    save(figure, path)


def _draw_kind(ax: Any, rows: Sequence[dict[str, Any]]) -> None:
    values = {name: list(dict.fromkeys(row.get(name) for row in rows)) for name in _AXES}
    ours = rows[0]["engine"]
    # What only a peer has, or has otherwise, is said by its name.
    swept = [name for name in _AXES if len({r.get(name) for r in rows if r["engine"] == ours}) > 1]
    along = max(swept, key=lambda name: len(values[name]), default="test")
    rest = [name for name in swept if name != along]
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        flash = row.get("flash_attn")
        engine = row["engine"] + ("" if flash is None or len(values["flash_attn"]) < 3 else f" -fa {int(flash)}")
        label = ", ".join([engine, *(f"{_AXES[name]} {row.get(name)}" for name in rest)])
        lines.setdefault(label, []).append(row)
    places = list(dict.fromkeys(row.get(along) for row in rows if row["engine"] == ours))
    numeric = all(isinstance(place, int) for place in places)
    for label, found in lines.items():
        x = [row.get(along) for row in found]
        at = x if numeric else [places.index(each) for each in x]
        middle = [row["tokens_per_s"] for row in found]
        spread = [[m - r["min"] for m, r in zip(middle, found, strict=True)],
                  [r["max"] - m for m, r in zip(middle, found, strict=True)]]  # fmt: skip
        ax.errorbar(at, middle, yerr=spread, marker="o", capsize=3, label=label)
    ax.set_xlabel(_AXES.get(along, ""))
    if not numeric:
        ax.set_xticks(range(len(places)), [str(place) for place in places])
    elif min(places) > 0 and max(places) >= _WIDE * min(places):
        ax.set_xscale("log", base=2)
        ax.set_xticks(places, [str(place) for place in places])
