"""Rows as text: Markdown, CSV, JSON and JSON lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .rows import COLUMNS, OURS

Row = Mapping[str, Any]
# Column of a row -> its heading in a table, where it differs between rows.
SETTINGS = {
    "n_threads": "threads", "n_threads_batch": "threads for prompts", "n_batch": "batch", "n_ubatch": "ubatch",
    "type_k": "cache", "n_gpu_layers": "ngl", "n_cpu_ffn": "n-cpu-ffn", "place": "place",
}  # fmt: skip


class Table:
    """One line a workload: the rate and its parts, or beside peers the rates of all and the ratios of the medians.

    varying: settings that have columns; peers: their labels; peaks: whether this machine's are known.
    """

    def __init__(self, varying: Sequence[str], peers: Sequence[str], peaks: bool) -> None:
        self._varying, self._peers, self._peaks = varying, peers, peaks

    def head(self) -> list[str]:
        """The headings."""
        out = [*(SETTINGS[name] for name in self._varying), "test"]
        if self._peers:
            out.append(f"{OURS} t/s")
            for label in self._peers:
                out += [f"{label} t/s", "ratio"]
            return out
        out += ["t/s", "min", "max"]
        return out + (["GMAC/s", "of peak", "GB/s", "of read"] if self._peaks else [])

    def line(self, ours: Row, theirs: Sequence[Row]) -> list[str]:
        """The cells of a workload."""
        out = [*(_cell(ours[name]) for name in self._varying), ours["test"]]
        if self._peers:
            out.append(spread(ours))
            for row in theirs:
                out += [spread(row), f"{ours['tokens_per_s'] / row['tokens_per_s']:.2f}"]
            return out
        out += [f"{ours[name]:.1f}" for name in ("tokens_per_s", "min", "max")]
        if self._peaks:
            out += [f"{ours['gmac_per_s']:.1f}", percent(ours["fraction_of_int8_peak"])]
            out += [f"{ours['gb_per_s']:.1f}", percent(ours["fraction_of_read"])]
        return out


def spread(row: Row) -> str:
    """The median, and from the lowest to the highest."""
    return f"{row['tokens_per_s']:.1f} ({row['min']:.1f}-{row['max']:.1f})"


def _cell(value: Any) -> str:
    return "" if value is None else str(value)


def percent(fraction: float | None) -> str:
    """For people."""
    return "" if fraction is None else f"{100 * fraction:.0f} %"


class Report:
    """Writes results as they come. begin: before the first, with what is common; add: a workload, the rows of it, ours
    first; end: behind the last. write: where text goes."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.write = write

    def begin(self, table: Table, title: str) -> None:
        """Headings."""

    def add(self, rows: Sequence[Row]) -> None:
        """The rows of a workload."""

    def end(self, peaks: Mapping[str, Any]) -> None:
        """Whatever is left to write."""


class Markdown(Report):
    """A table for a README, a line as soon as it is measured."""

    def begin(self, table: Table, title: str) -> None:
        self._table = table
        head = table.head()
        self.write(f"{title}\n\n{_markdown(head)}{_markdown(['---'] + ['---:'] * (len(head) - 1))}")

    def add(self, rows: Sequence[Row]) -> None:
        self.write(_markdown(self._table.line(rows[0], rows[1:])))


def _markdown(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


class Csv(Report):
    """One line a row, with all columns."""

    def begin(self, table: Table, title: str) -> None:
        self._line(COLUMNS)

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            values = (row.get(name) for name in COLUMNS)
            self._line([" ".join(map(str, v)) if isinstance(v, list) else v for v in values])

    def _line(self, values: Sequence[Any]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(values)
        self.write(text.getvalue())


class JsonLines(Report):
    """One object a line and row."""

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.write(json.dumps(row) + "\n")


class Json(Report):
    """One object: what is common, and `results`, the rows."""

    def begin(self, table: Table, title: str) -> None:
        self._rows: list[Row] = []

    def add(self, rows: Sequence[Row]) -> None:
        self._rows += rows

    def end(self, peaks: Mapping[str, Any]) -> None:
        first = next((row for row in self._rows if row["engine"] == OURS), None)
        if first is None:
            return
        same = {name: first[name] for name in ("model", "host", "commit", "version", "kernel_set")}
        self.write(json.dumps({**same, "threads": first["n_threads"], "peaks": peaks, "results": self._rows}) + "\n")


FORMATS: dict[str, Callable[[Callable[[str], None]], Report]] = {
    "md": Markdown, "csv": Csv, "json": Json, "jsonl": JsonLines,
}  # fmt: skip
