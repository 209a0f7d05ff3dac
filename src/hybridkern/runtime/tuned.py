"""What `hybridkern tune` found: kept per machine and model, and found again where nothing contradicts it.

A record holds threads, and where a GPU has a part in it the plan that was measured; beside these the facts that it
depends on. Any of them being another now, it is not used, and the reason is told.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hybridkern.errors import ArgumentError, HybridKernError
from hybridkern.kernels.cpu.selection import chosen_name
from hybridkern.plan.devices import Gpu
from hybridkern.plan.plan import Plan
from hybridkern.plan.rules import Rules

from .arguments import LoadOptions
from .footprint import total_memory
from .machine import cpu_name
from .threads import default_threads

VERSION = 1
NEAR = 0.1  # how far memory may be from what it was
_FACTS = {
    "version": "hybridkern", "kernels": "the kernel set", "cores": "the number of cores", "gpus": "the GPU",
    "driver": "the driver", "memory": "the memory that may be used", "n_ctx": "the context", "kv_type": "the KV cache",
}  # fmt: skip


class DamagedFile(HybridKernError):
    """The file of records cannot be read."""


@dataclass(frozen=True)
class Tuned:
    """One record. plan: to be followed, None where everything is the CPU's; prefill, decode: tokens a second that were
    measured; facts: what it depends on; origin: when it was found, for people."""

    threads: int
    threads_batch: int
    n_ubatch: int
    plan: Plan | None
    prefill: float
    decode: float
    facts: Mapping[str, Any]
    origin: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        plan = None if self.plan is None else json.loads(self.plan.to_json())
        return asdict(replace(self, plan=None)) | {"plan": plan}

    @classmethod
    def from_json(cls, record: Any) -> Tuned:
        """Raises ArgumentError for what `to_json` did not write."""
        try:
            plan = None if record["plan"] is None else Plan.from_json(json.dumps(record["plan"]))
            made = cls(**dict(record) | {"plan": plan})
            numbers = (made.threads, made.threads_batch, made.n_ubatch)
            good = all(isinstance(n, int) and 0 < n < 1 << 24 for n in numbers) and isinstance(made.facts, dict)
            if not good or not all(isinstance(x, (int, float)) for x in (made.prefill, made.decode)):
                raise ValueError("a number is none")
            return made
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ArgumentError(f"this is no record of `hybridkern tune`: {error!r}") from error

    def summary(self) -> str:
        """A line for people."""
        threads = f"-t {self.threads}" + (f" -tb {self.threads_batch}" if self.threads_batch != self.threads else "")
        placed = " and its placement" if self.plan is not None else ""
        return (
            f"tuned: {threads} -ub {self.n_ubatch}{placed}, {self.origin}, measured then: prompt {self.prefill:,.0f} "
            f"t/s, decode {self.decode:,.1f} t/s (--no-tune-cache does without)"
        )

    def applied(self, options: LoadOptions) -> LoadOptions:
        """The arguments with the numbers that were found."""
        return replace(options, threads=self.threads, threads_batch=self.threads_batch, n_ubatch=self.n_ubatch)


# when a record counts


def facts(options: LoadOptions, trained: int, gpus: Sequence[Gpu], others: Sequence[int] = ()) -> dict[str, Any]:
    """What a record depends on, now. trained: the context that the model was trained with; others: numbers of further
    GPUs that may be used."""
    from hybridkern import __version__

    found: dict[str, Any] = {
        "version": __version__,
        "kernels": chosen_name(),
        "cores": default_threads(),
        "gpus": [f"{g.label} {g.limits.capability[0]}.{g.limits.capability[1]}" for g in gpus],
        "driver": None,
        "memory": {"cpu": total_memory() or 0} | {g.name: g.usable for g in gpus},
        "n_ctx": None,
        "kv_type": options.kv_type,
    }
    if gpus:
        found["n_ctx"] = options.context(trained)
        if not any(g.pretended for g in gpus):
            from hybridkern.kernels.cuda import driver

            found["driver"] = "{}.{}".format(*driver.driver_version())
            found["gpus"] += [g.name for g in driver.gpus() if g.number in others]
    return found


def changed(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first fact that is another, for people; None if none is."""
    for name, what in _FACTS.items():
        a, b = then.get(name), now[name]
        if name == "memory" and isinstance(a, dict) and set(a) == set(b):
            if all(isinstance(a[d], int) and abs(a[d] - b[d]) <= NEAR * max(a[d], b[d]) for d in b):
                continue
        elif a == b:
            continue
        return f"{what} was {a}, and is {b}" if name != "memory" else f"{what} is another"
    return None


def contradiction(options: LoadOptions, record: Tuned, gpus: Sequence[Gpu]) -> str | None:
    """The argument that asks for something else than the record, None if none does."""
    batch = options.threads if options.threads_batch is None else options.threads_batch
    for name, asked, found in (
        ("threads", options.threads, record.threads),
        ("threads_batch", batch, record.threads_batch),
        ("n_ubatch", options.n_ubatch, record.n_ubatch),
    ):
        if asked not in (None, found):
            return f"{name} = {asked} was asked for"
    if options.n_batch < record.n_ubatch:
        return f"n_batch = {options.n_batch} was asked for"
    return fixed(options, gpus)


def short(record: Tuned, options: LoadOptions, gpus: Sequence[Gpu], host: int | None) -> str | None:
    """What the plan of a record lacks now, None if nothing. host: free bytes of main memory, None: unknown."""
    if record.plan is None:
        return None
    if options.n_ctx is not None and record.plan.n_ctx < options.context(record.plan.n_ctx):
        return f"n_ctx = {options.n_ctx} was asked for"
    for name, there in [("cpu", host), *((g.name, g.usable) for g in gpus)]:
        held = record.plan.device(name)
        if held is not None and there is not None and held.nbytes > there:
            return f"its plan takes {held.nbytes >> 20} MiB on {name}, {there >> 20} MiB are free"
    return None


def fixed(options: LoadOptions, gpus: Sequence[Gpu]) -> str | None:
    """The argument that fixes a part of what a plan decides, None if none does."""
    if options.repack is not None:
        return f"repack = {options.repack} was asked for"
    if not options.op_offload and gpus:
        return "op_offload = False was asked for"
    if not options.fit:
        return "fit = False was asked for"
    rules, usual = options.rules, Rules(main_gpu=options.device or 0)
    none_there = not gpus and rules.n_gpu_layers == 0
    if replace(rules, n_gpu_layers=None) != usual or not (rules.fills or none_there):
        return "a placement was asked for"
    return None


# where records are kept


def tuned_file() -> Path:
    """One file for all machines that share a home, beside the rates."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "hybridkern" / "tuned.json"


def key_of(fingerprint: str) -> str:
    """Of a model on this machine."""
    machine = hashlib.sha256(repr((cpu_name(), os.cpu_count())).encode()).hexdigest()[:12]
    return f"{fingerprint}-{machine}"


def read(fingerprint: str) -> Tuned | None:
    """The record of a model on this machine, None if there is none. Raises DamagedFile."""
    record = _records().get(key_of(fingerprint))
    if record is None:
        return None
    try:
        return Tuned.from_json(record)
    except ArgumentError as error:
        raise DamagedFile(f"{tuned_file()}: {error}") from error


def keep(fingerprint: str, record: Tuned) -> Path:
    """Adds a record to the file, in place of an older one; says where that is. A damaged file begins anew. Raises
    HybridKernError where it cannot be written."""
    path = tuned_file()
    try:
        records = _records()
    except DamagedFile:
        records = {}
    text = json.dumps({"version": VERSION, "records": records | {key_of(fingerprint): record.to_json()}}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
            file.write(text + "\n")
        os.replace(file.name, path)
    except OSError as error:
        raise HybridKernError(f"{path} cannot be written, nothing is kept: {error.strerror or error}") from error
    return path


def _records() -> dict[str, Any]:
    """All of them. Raises DamagedFile."""
    path = tuned_file()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != VERSION:
            return {}  # of another version of this package: tuned again where it is wanted
        records = content["records"]
        if not isinstance(records, dict):
            raise TypeError("records")
        return records
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedFile(f"{path} cannot be read ({type(error).__name__}: {error})") from error
