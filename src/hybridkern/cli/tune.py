"""Find the threads, the tokens of a step and the placement with which a model is fastest on this machine.

What is made least is what the plan makes least: the time of a prompt of 512 tokens and an answer of 256, and a tenth of
a prompt of 2,048. The search begins with what would be used without this, measures around it within the budget, and
keeps the winner for this machine and model: from then on it is used wherever nothing else is asked for (-ngl auto, no
-t, -tb or -ub). --no-tune-cache does without. The last line of the output is the winner as flags.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from hybridkern.errors import ArgumentError

from .flags import add_context, add_model, load_arguments
from .terminal import console, note, waiting, write
from .values import number

if TYPE_CHECKING:
    from hybridkern import Plan
    from hybridkern.measure.search import Found, Trial

_FOUND = "is what is looked for: leave it out"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add_model(parser)
    group = parser.add_argument_group("search")
    group.add_argument(
        "--budget-seconds", type=number(1, 1e6), default=60.0, metavar="S",
        help="for the whole search, the first load apart (60)",
    )  # fmt: skip
    group.add_argument("--no-keep", dest="keep", action="store_false", help="show the winner, and do not keep it")
    add_context(parser)


def run(args: argparse.Namespace) -> int:
    """Search, show, keep."""
    options = load_arguments(args)
    _check(args, options)
    from hybridkern.measure.search import search
    from hybridkern.measure.trials import Trials
    from hybridkern.runtime.locate import locate

    found_file = locate(args.model, note)
    if found_file.note:
        note(found_file.note)
    path = str(found_file.path)
    options["tuned"] = False
    tuning = _Tuning(path, options)
    begin = time.monotonic()
    with waiting("measuring") as status, Trials(path, tuning.options, args.budget_seconds, status) as trials:
        found = search(tuning.start, tuning.space, trials, args.budget_seconds)
    seconds = time.monotonic() - begin
    _show(tuning.plan.model, found)
    said = "" if found.complete else "; the budget ended the search, --budget-seconds gives it more"
    note(f"{len(found.trials)} choices in {seconds:.0f} s{said}")
    if args.keep:
        plan = trials.plans[found.winner.choice] if tuning.gpus else None
        note(f"kept in {tuning.keep(found, plan, seconds)}: -ngl auto uses it")
    write(found.winner.choice.flags() + "\n")
    return 0


def _check(args: argparse.Namespace, options: dict[str, Any]) -> None:
    """Raises ArgumentError for flags that fix what is looked for."""
    for flag, given in (("-t", args.threads), ("-tb", args.threads_batch), ("-ub", args.ubatch_size)):
        if given not in (None, -1):
            raise ArgumentError(f"{flag} {given} {_FOUND}")
    for flag, name, usual in (
        ("-ngl", "n_gpu_layers", (None, "auto")),
        ("--place", "place", (None,)),
        ("-ot", "override_tensor", ((),)),
        ("--n-cpu-ffn", "n_cpu_ffn", (0,)),
        ("-nkvo", "kv_offload", (True,)),
        ("--no-op-offload", "op_offload", (True,)),
        ("--fit off", "fit", (True,)),
        ("-ts", "tensor_split", ((),)),
        ("--plan", "plan", (None,)),
        ("--repack or --no-repack", "repack", (None,)),
    ):
        if options[name] not in usual:
            raise ArgumentError(f"{flag}: where things lie {_FOUND}")
    if args.plan is not None:
        raise ArgumentError(f"--plan: where things lie {_FOUND}")


class _Tuning:
    """Where the search begins, what it may try, and what its result depends on."""

    def __init__(self, path: str, options: dict[str, Any]) -> None:
        from hybridkern.gguf import GGUFFile, require_finite
        from hybridkern.measure.search import Choice, Space, thread_numbers, ubatches_for
        from hybridkern.measure.trials import placements_around
        from hybridkern.plan.assignment import CPU
        from hybridkern.runtime.planning import plan, surroundings
        from hybridkern.runtime.threads import default_threads, usable_cores

        self.options = {name: value for name, value in options.items() if name not in ("sha256", "validate")}
        with GGUFFile.open(path, sha256=options["sha256"]) as file:  # once, not with every load
            if options["validate"]:
                require_finite(file)

        def planned(layers: Any, ffn: int) -> Plan:
            return plan(path, **self.options | {"n_gpu_layers": layers, "n_cpu_ffn": ffn})

        with waiting("planning"):
            self.plan = planned(None, 0)
            self.facts, self.gpus = surroundings(path, **self.options)
            placements = placements_around(self.plan, planned) if self.gpus else []
        usual = default_threads()
        self.start = Choice(usual, usual, self.plan.assignment.n_ubatch)
        computes = placements or self.plan.assignment.head == CPU or CPU in self.plan.assignment.tensors.values()
        self.space = Space(
            thread_numbers(usual, usable_cores()) if computes else [usual],
            ubatches_for(self.options["n_batch"], self.plan.n_ctx, self.start.n_ubatch),
            placements,
        )

    def keep(self, found: Found, plan: Plan | None, seconds: float) -> Any:
        """Where it is kept."""
        from hybridkern.runtime.tuned import Tuned, keep

        choice = found.winner.choice
        origin = f"on {time.strftime('%Y-%m-%d')} in {seconds:.0f} s"
        return keep(
            self.plan.fingerprint,
            Tuned(
                choice.threads, choice.threads_batch, choice.n_ubatch, plan, found.winner.prefill, found.winner.decode,
                self.facts, origin,
            ),
        )  # fmt: skip


def _show(model: str, found: Found) -> None:
    """What was tried, in its order."""
    from rich.table import Table

    long = any(t.prefill_long for t in found.trials)
    head = ["flags", "prompt t/s", *["long prompt t/s"] * long, "decode t/s", "request", ""]
    table = Table(*head, title=model, title_justify="left")
    for trial in found.trials:
        table.add_row(trial.choice.flags(), *_figures(trial, long), _verdict(trial, found))
    console().print(table)


def _figures(trial: Trial, long: bool) -> list[str]:
    if trial.error:
        return [""] * (3 + long)
    middle = [f"{trial.prefill_long:,.1f}" if trial.prefill_long else ""] * long
    return [f"{trial.prefill:,.1f}", *middle, f"{trial.decode:,.1f}", f"{trial.seconds:.2f} s"]


def _verdict(trial: Trial, found: Found) -> str:
    if trial.error:
        return f"cannot be used: {trial.error}"
    words = ["the plan's"] * (trial.choice == found.start.choice) + ["winner"] * (trial.choice == found.winner.choice)
    return ", ".join(words)
