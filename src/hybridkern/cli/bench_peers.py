"""--peer: other engines, loaded beside a model for the time of its measurements."""

from __future__ import annotations

import argparse
import contextlib
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hybridkern.errors import ArgumentError

from .terminal import note, waiting
from .values import several

if TYPE_CHECKING:
    from hybridkern import Model
    from hybridkern.measure.peers import Worker

PACKAGES = ("llama-cpp-python", "ik-llama-cpp-python")
ALL_LAYERS = 999
_FUSED = "-fa: attention is always fused; there is no other kind here"


def add_peers(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    group = parser.add_argument_group("peers")
    group.add_argument("--peer", choices=PACKAGES, metavar="PACKAGE", help=f"compare with {' or '.join(PACKAGES)}")
    group.add_argument("--peer-python", metavar="PYTHON", help="the Python that has it (default: this one)")
    group.add_argument(
        "-fa", "--flash-attn", dest="flash", nargs="?", type=several(_switch, spans=False), const=[True],
        metavar="0|1", help="the peer's flash attention; a list measures both (1)",
    )  # fmt: skip


def _switch(text: str) -> bool:
    words = {"1": True, "on": True, "auto": True, "0": False, "off": False}
    if text.lower() not in words:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(words)}")
    return words[text.lower()]


def check_peers(args: argparse.Namespace) -> None:
    """Before anything is loaded: raises ArgumentError for what cannot be."""
    if args.peer is None:
        if args.peer_python is not None:
            raise ArgumentError("--peer-python is of use with --peer only")
        if args.flash is not None:
            note(_FUSED)
        return
    from hybridkern.measure.peers import check_installed

    check_installed(args.peer, args.peer_python)


class Peers(contextlib.AbstractContextManager["Peers"]):
    """The workers of one setting; none without --peer."""

    def __init__(self, args: argparse.Namespace, setting: argparse.Namespace, model: Model) -> None:
        self.workers: list[Worker] = []
        flashes = list(dict.fromkeys(args.flash or [True])) if args.peer else []
        self._flashes = flashes
        self.labels = [args.peer + ("" if len(flashes) == 1 else f" -fa {int(flash)}") for flash in flashes]
        self._layers = _layers(model) if args.peer else 0
        try:
            for label, flash in zip(self.labels, flashes, strict=True):
                with waiting(f"loading {label}"):
                    self.workers.append(self._worker(args, model, label, flash))
                self._check(model, self.workers[-1])
        except BaseException:
            self._close()
            raise

    def _worker(self, args: argparse.Namespace, model: Model, label: str, flash: bool) -> Worker:
        from hybridkern.measure.peers import PEERS, Worker

        engine = model.engine
        options = {
            "path": str(model.file.path),
            "threads": engine.threads,
            "threads_batch": engine.threads_batch,
            "n_ctx": model.n_ctx,
            "batch": engine.n_batch,
            "ubatch": engine.n_ubatch,
            "kv_type": model.kv_type,
            "flash": flash,
            "n_gpu_layers": self._layers,
        }
        return Worker(label, PEERS[args.peer], args.peer_python or sys.executable, options)

    def _check(self, model: Model, worker: Worker) -> None:
        """Whether both compute the same, told in any case."""
        from hybridkern.measure.peers import TOLERANCE, perplexities

        ours, theirs = perplexities(model, worker)
        agree = abs(theirs / ours - 1) <= TOLERANCE
        verdict = "" if agree else ": they do NOT compute the same, and the ratios mean nothing"
        note(f"perplexity of a short text: here {ours:.3f}, {worker.label} {worker.version} {theirs:.3f}{verdict}")

    def setting(self, i: int, ours: dict[str, Any]) -> dict[str, Any]:
        """What a row of a peer says of its setting: of placement, what was asked of us, and the layers it was given."""
        mine = ("version", "commit", "kernel_set", "gpu_blocks")
        rest = {name: value for name, value in ours.items() if name not in mine}
        return rest | {
            "engine": self.labels[i].split(" ")[0],
            "version": self.workers[i].version,
            "gpu_blocks": self._layers,
            "flash_attn": self._flashes[i],
        }

    def _close(self) -> None:
        for worker in self.workers:
            worker.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()


def _layers(model: Model) -> int:
    """As llama.cpp counts, as many as our plan has there: the head first, then blocks."""
    rows = model.plan.table()
    on = [row for row in rows if row.name.startswith("blk.") and row.device != "cpu"]
    if not on and model.plan.assignment.head == "cpu":
        return 0
    return ALL_LAYERS if all(row.device != "cpu" for row in rows) else len(on) + 1
