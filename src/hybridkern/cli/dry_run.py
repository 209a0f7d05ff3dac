"""What `--dry-run` shows: where everything would lie, and how fast that would be. No tensor data are read."""

from __future__ import annotations

import argparse
from typing import Any

from .placement_flags import keep_plan
from .plan_view import block_table, memory_table
from .terminal import console, note, size, write


def show_dry_run(args: argparse.Namespace, options: dict[str, Any]) -> int:
    """The plan for these arguments; --verbose adds the table by block."""
    plan = made_plan(args, options)
    keep_plan(args, plan)
    out = console()
    out.print(memory_table(plan))
    if args.verbose:
        out.print(block_table(plan))
    for line in plan.summary():
        write(line + "\n")
    host = plan.device("cpu")
    if host is not None and host.usable is not None and host.nbytes > host.usable:
        note(
            f"this would not fit: {size(host.nbytes)} of main memory are needed and {size(host.usable)} are available; "
            "lower -c, use -ctk q8_0, or --no-repack"
        )
    return 0


def made_plan(args: argparse.Namespace, options: dict[str, Any]) -> Any:
    """The plan of the model that -m names."""
    from hybridkern.gguf import GGUFFile
    from hybridkern.runtime.arguments import LoadOptions
    from hybridkern.runtime.locate import locate
    from hybridkern.runtime.planning import plan_file

    named = dict(options)
    digest = named.pop("sha256")
    checked = LoadOptions.checked(**named)
    found = locate(args.model, note)
    if found.note:
        note(found.note)
    with GGUFFile.open(found.path, sha256=digest) as file:
        return plan_file(file, checked)
