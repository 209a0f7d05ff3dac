"""Write a model in another file type: fewer bits per weight, most of the quality.

The mixes (_S, _M, _L: which tensor gets which type) are those of llama.cpp. Rows that blocks of 256 weights do not
divide get a type with blocks of 32. The new file appears under its name when it is complete, and not before.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from hybridkern.errors import ArgumentError

from .terminal import console, note, size, write
from .values import integer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    from hybridkern.quantize.recipes import FILE_TYPES

    add = parser.add_argument
    add("input", metavar="IN.gguf", help="the model, best in F16, BF16 or F32; of a split one the first file")
    add("output", metavar="OUT.gguf", help="the file to write; what stands there is replaced")
    add("type", metavar="TYPE", help=f"{', '.join(FILE_TYPES)}; in any case")
    add("nthreads", nargs="?", type=integer(1, 256), metavar="THREADS", help="the same as -t")
    add("-t", "--threads", type=integer(1, 256), metavar="N", help="threads (default: physical cores allowed)")
    add("--imatrix", metavar="FILE", help="how much each column matters: a GGUF or .dat file of `hybridkern imatrix`")
    add(
        "--tensor-type",
        action="append",
        default=[],
        metavar="REGEX=TYPE",
        help="the type of the tensors whose name this finds; repeatable, the first that is found counts",
    )
    add("--output-tensor-type", metavar="TYPE", help="the type of output.weight")
    add("--token-embedding-type", metavar="TYPE", help="the type of token_embd.weight")
    add("--leave-output-tensor", action="store_true", help="copy output.weight")
    add("--pure", action="store_true", help="one type for all matrices, no mix")
    add("--allow-requantize", action="store_true", help="quantise tensors that are quantised already")
    add("--dry-run", action="store_true", help="show types and sizes, write nothing")
    add("-v", "--verbose", action="store_true", help="say more, with tracebacks")


def run(args: argparse.Namespace) -> int:
    """Open, plan, show, write."""
    from hybridkern.gguf import GGUFFile
    from hybridkern.gguf.targets import check_target
    from hybridkern.quantize import file_type_named, plan, quantize_file, read_importance
    from hybridkern.runtime.locate import locate
    from hybridkern.runtime.threads import default_threads

    if args.threads is not None and args.nthreads is not None:
        raise ArgumentError(f"-t {args.threads} and THREADS {args.nthreads}: give one of them")
    threads = args.nthreads or args.threads or default_threads()
    kind, wishes = file_type_named(args.type), _wishes(args)
    importance = read_importance(args.imatrix) if args.imatrix else None
    found = locate(args.input, note)
    with GGUFFile.open(found.path) as file:
        check_target(args.output, [*file.paths, *([args.imatrix] if args.imatrix else [])])
        targets = plan(file, kind, wishes, importance is not None)
        _show(targets, importance)
        before, after = sum(t.info.nbytes for t in targets), sum(t.nbytes for t in targets)
        bits = 8 * after / max(1, sum(t.info.n_elements for t in targets))
        summary = f"{size(before)} -> {size(after)}, {bits:.2f} bits a weight"
        if args.dry_run:
            write(f"{kind.name}: {summary}; nothing written\n")
            return 0
        begin = time.perf_counter()
        with progress(before, "quantising") as heard:
            written = quantize_file(file, args.output, kind, targets, importance, threads=threads, progress=heard)
        seconds = time.perf_counter() - begin
    rate = f"{seconds / (before / 1e9):.2f} s a GB, {threads} thread{'s' if threads > 1 else ''}"
    write(f"{kind.name}: {summary}; {written} bytes in {seconds:.2f} s ({rate})\n")
    return 0


def _wishes(args: argparse.Namespace) -> Any:
    from hybridkern.quantize import Wishes
    from hybridkern.quantize.plan import type_named

    rules = []
    for rule in args.tensor_type:
        pattern, equals, name = rule.rpartition("=")
        if not (pattern and equals and name):
            raise ArgumentError(f"--tensor-type: {rule!r} is not REGEX=TYPE, such as 'ffn_down=Q6_K'")
        rules.append((pattern, type_named(name, f"--tensor-type {rule}")))
    output, embedding = (
        value and type_named(value, flag)
        for value, flag in (
            (args.output_tensor_type, "--output-tensor-type"),
            (args.token_embedding_type, "--token-embedding-type"),
        )
    )
    return Wishes(
        tuple(rules), output, embedding, args.pure, args.leave_output_tensor, allow_requantize=args.allow_requantize
    )


def _show(targets: list[Any], importance: Any) -> None:
    """A line per matrix, as it will be; the vectors, which are copied, in one."""
    from hybridkern.quantize.plan import is_matrix

    copied = [t for t in targets if t.copied and not is_matrix(t.info)]
    unmeasured = 0
    for t in targets:
        if t.copied and not is_matrix(t.info):
            continue
        shape = " x ".join(str(n) for n in t.info.shape)
        what = f"{t.info.type.name} copied" if t.copied else f"{t.info.type.name} -> {t.type.name}"
        reason = f"  ({t.reason})" if t.reason else ""
        write(f"{t.info.name:<32} {shape:>16}  {what:<16} {size(t.nbytes):>10}{reason}\n")
        unmeasured += importance is not None and not t.copied and t.info.name not in importance.means
    if copied:
        write(f"{len(copied)} other tensors are copied, {size(sum(t.nbytes for t in copied))}\n")
    if unmeasured:
        note(f"{unmeasured} of the matrices are not in {importance.path}: their columns count alike")


@contextlib.contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[int], None] | None]:
    """A bar on a terminal, None elsewhere. What it yields is called from any thread."""
    import sys

    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    lock = threading.Lock()
    columns = TextColumn(what), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn()
    with Progress(*columns, console=console(to_stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def heard(nbytes: int) -> None:
            with lock:
                bar.advance(task, nbytes)

        yield heard
