"""Measure prompt and generation speed, on the CPU beside the peaks of this machine measured in the same run.

Prompts (pp) are random tokens with logits at the last one; generation (tg) is greedy, sampling and detokenising
included; -pg is one behind the other; all behind -d tokens of context. A rate is the median of the repetitions.

-p, -n, -d, -t, -tb, -b, -ub, -ctk, -ctv, -ngl and --n-cpu-ffn take lists and spans: 1,2,4; 128-512+128; 128-2048*2.
-pg may be repeated, alternatives of --place are separated by semicolons. Every combination is measured.

--peer runs another engine in a process of its own, in the same settings, taking turns; whether it computes the same is
checked first. -fa 0,1 is for the peer: our attention is always fused.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridkern.errors import ArgumentError, HybridKernError

from .bench_peers import Peers, add_peers, check_peers
from .bench_plot import check_plot
from .flags import SWEPT, add_context, add_model, load_arguments, settings
from .generate import open_model
from .terminal import console, note, waiting, write
from .values import integer, pair, several

if TYPE_CHECKING:
    from hybridkern import Model
    from hybridkern.measure.report import Report, Table
    from hybridkern.measure.timing import Workload

SHORT = 64  # tokens of the text that is compared with a peer
LONGEST = 1 << 24  # tokens; no context is longer, and their ids would fill the memory before anything is refused


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add_model(parser)
    group = parser.add_argument_group("what to measure")
    add, tokens = group.add_argument, several(integer(0, LONGEST))
    add("-p", "--n-prompt", type=tokens, default=[512], metavar="N", help="prompt tokens; 0: none (512)")
    add("-n", "--n-gen", type=tokens, default=[64], metavar="N", help="tokens to generate; 0: none (64)")
    add("-pg", type=pair, action="append", default=[], metavar="PP,TG", help="a prompt and an answer, timed as one")
    add("-d", "--n-depth", type=tokens, default=[0], metavar="N", help="context before all that (0)")
    add("-r", "--repetitions", type=integer(1, 1000), default=3, metavar="N", help="repetitions (3)")
    add_peers(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o", "--output", choices=("table", "md", "csv", "json", "jsonl"), default="table", help="format (table)"
    )
    group.add_argument("--json", dest="output", action="store_const", const="json", help="the same as -o json")
    group.add_argument("--plot", type=Path, metavar="OUT.PNG", help="draw the rates too (needs matplotlib)")
    add_context(parser, sweeps=True, but=("-fa",))


def run(args: argparse.Namespace) -> int:
    """Load, measure, show; for every setting. A setting that fails is told, and the others are measured."""
    from hybridkern.measure.timing import workloads

    work = workloads(args.n_prompt, args.n_gen, args.pg, args.n_depth)
    if not work:
        raise ArgumentError("-p 0 -n 0: nothing to measure")
    check_plot(args.plot)
    check_peers(args)
    chosen = _usable(list(settings(args)))
    bench = Bench(args, work)
    failed = 0
    try:
        for setting in chosen:
            try:
                bench.measure(setting)
            except HybridKernError as error:
                if len(chosen) == 1:
                    raise
                failed += 1
                note(f"error: {_named(args, setting)}: {' '.join(str(error).split())}")
    finally:  # also what was measured until Ctrl-C
        bench.end()
    return 1 if failed else 0


def _usable(found: list[argparse.Namespace]) -> list[argparse.Namespace]:
    """Without settings that this version does not have: keys and values of different types, said once each."""

    def mixed(setting: argparse.Namespace) -> bool:
        return None not in (setting.cache_type_k, setting.cache_type_v) and setting.cache_type_k != setting.cache_type_v

    good = [setting for setting in found if not mixed(setting)]
    if good:
        for k, v in dict.fromkeys((s.cache_type_k, s.cache_type_v) for s in found if mixed(s)):
            note(f"-ctk {k} -ctv {v} is left out: keys and values have one type in this version")
    return good or found


def _named(args: argparse.Namespace, setting: argparse.Namespace) -> str:
    """Those flags of a setting that differ between settings."""
    varying = [name for name in SWEPT if len(getattr(args, name) or ()) > 1]
    return ", ".join(f"{name.replace('_', '-')} {getattr(setting, name)}" for name in varying)


class Bench:
    """All settings of a run, their rows and where these go."""

    def __init__(self, args: argparse.Namespace, work: list[Workload]) -> None:
        from hybridkern.measure.report import FORMATS

        self._args, self._work = args, work
        self.rows: list[dict[str, Any]] = []
        self._known: dict[int, dict[str, float]] = {}  # peaks by number of threads
        self._report: Report = Tables(write) if args.output == "table" else FORMATS[args.output](write)
        self._begun = False

    def measure(self, setting: argparse.Namespace) -> None:
        """All workloads in one setting."""
        options = load_arguments(setting)
        if setting.ctx_size is None:
            options["n_ctx"] = max(SHORT if self._args.peer else 2, *(work.context for work in self._work))
        with open_model(setting, options) as model, _session(model) as session:
            longest = max(self._work, key=lambda work: work.context)
            if longest.context > model.n_ctx:
                raise ArgumentError(f"{longest.name} takes a context of {longest.context} tokens, -c is {model.n_ctx}")
            with Peers(self._args, setting, model) as peers:
                self._measure(model, session, peers, options)

    def _measure(self, model: Model, session: Any, peers: Peers, options: dict[str, Any]) -> None:
        import numpy as np

        from hybridkern.measure.rows import effort, figures, in_turn, peaks_of, setting_of
        from hybridkern.measure.timing import seconds

        with waiting("measuring the peaks of this machine"):
            peaks = peaks_of(model, self._known)
        same = setting_of(model, options)
        self._begin(same, peers, any(peaks.values()))
        ids = np.random.default_rng(0).integers(0, model.n_vocab, 1 << 14).tolist()
        for work in self._work:
            with waiting(f"measuring {work.name}"):
                runs = [lambda work=work: seconds(session, work, ids)]  # type: ignore[misc]
                runs += [lambda work=work, w=w: w.seconds(work, ids) for w in peers.workers]  # type: ignore[misc]
                times = in_turn(runs, self._args.repetitions)
            ours = {**same, **figures(work, times[0])}
            ours.update(effort(model, work, work.tokens / ours["tokens_per_s"], peaks))
            theirs = [{**peers.setting(i, same), **figures(work, t)} for i, t in enumerate(times[1:])]
            if theirs:
                ours["ours_to_peer"] = round(ours["tokens_per_s"] / max(row["tokens_per_s"] for row in theirs), 4)
            self.rows += [ours, *theirs]
            self._report.add([ours, *theirs])

    def _begin(self, same: dict[str, Any], peers: Peers, peaks: bool) -> None:
        """Headings, before the first row."""
        from hybridkern.measure.report import SETTINGS, Table

        if self._begun:
            return
        self._begun = True
        varying = [
            name for name in SETTINGS if any(len(getattr(self._args, flag) or ()) > 1 for flag in _COLUMNS[name])
        ]
        title = f"{same['model']} on {same['host']}: {same['kernel_set']}"
        title += "" if "n_threads" in varying else f", {same['n_threads']} thread{'s' * (same['n_threads'] > 1)}"
        self._report.begin(Table(varying, peers.labels, peaks), title)

    def end(self) -> None:
        """What is written last, and the picture."""
        if not self._begun:
            return
        self._report.end(next(iter(self._known.values()), {"read_gb_per_s": 0.0, "int8_gmac_per_s": 0.0}))
        if self._args.output == "table":
            for threads, peaks in self._known.items():
                read, int8 = peaks["read_gb_per_s"], peaks["int8_gmac_per_s"]
                count = f"{threads} thread{'s' * (threads > 1)}"
                note(f"peaks of this run, {count}: read {read:.1f} GB/s, int8 {int8:.1f} GMAC/s")
        if self._args.plot is not None and self.rows:
            from .bench_plot import draw

            draw(self.rows, self._args.plot)


# Column of a row -> the flags that sweep it.
_COLUMNS = {
    "n_threads": ("threads",), "n_threads_batch": ("threads_batch",), "n_batch": ("batch_size",),
    "n_ubatch": ("ubatch_size",), "type_k": ("cache_type_k", "cache_type_v"), "n_gpu_layers": ("n_gpu_layers",),
    "n_cpu_ffn": ("n_cpu_ffn",), "place": ("place",),
}  # fmt: skip


@contextlib.contextmanager
def _session(model: Model) -> Iterator[Any]:
    """Closed before the model is."""
    session = model.session()
    try:
        yield session
    finally:
        session.close()


class Tables:
    """A table on the terminal, when all is measured."""

    def __init__(self, write: Any) -> None:
        self._lines: list[list[str]] = []

    def begin(self, table: Table, title: str) -> None:
        """Headings."""
        self._table, self._title = table, title

    def add(self, rows: list[dict[str, Any]]) -> None:
        """The rows of a workload."""
        self._lines.append(self._table.line(rows[0], rows[1:]))

    def end(self, peaks: Any) -> None:
        """Show it."""
        from rich.table import Table as Rich

        table = Rich(*self._table.head(), title=self._title, title_justify="left")
        for line in self._lines:
            table.add_row(*line)
        console().print(table)
