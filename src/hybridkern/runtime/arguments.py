"""Checks of what the caller passes: an `ArgumentError` names the parameter, its value and what is allowed."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridkern.errors import ArgumentError
from hybridkern.plan.plan import Plan
from hybridkern.plan.rules import Rules

from .threads import MAX_THREADS

KV_TYPES = ("f16", "q8_0", "q4_0", "f32")
DEFAULT_CONTEXT, LEAST_CONTEXT = 8192, 4096
SPLIT_MODES = ("layer", "none")
MAX_BATCH = 1 << 24
_MAX = 2**31 - 1


def count(name: str, value: Any, low: int, high: int = _MAX) -> int:
    """`value` as an integer within [low, high]."""
    span = f"{low} or more" if high == _MAX else f"from {low} to {high}"
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name} = {value!r} is not an integer; allowed: {span}") from None
    if not low <= number <= high or isinstance(value, bool):
        raise ArgumentError(f"{name} = {value!r} is out of range; allowed: {span}")
    return number


@dataclass(frozen=True)
class LoadOptions:
    """The arguments of `load`, checked; what was left out is still None."""

    n_ctx: int | str | None
    threads: int | None
    threads_batch: int | None
    n_batch: int
    n_ubatch: int | None
    kv_type: str
    mmap: bool
    mlock: bool
    validate: bool
    n_gpu_layers: int | str | None = None
    device: int | None = 0
    repack: bool | None = None
    gpu_memory: tuple[int, ...] = ()
    place: str | None = None
    override_tensor: tuple[str, ...] = ()
    n_cpu_ffn: int = 0
    kv_offload: bool = True
    op_offload: bool = True
    fit: bool = True
    fit_margin: tuple[int, ...] = ()
    fit_ctx: int = LEAST_CONTEXT
    split_mode: str = "layer"
    tensor_split: tuple[float, ...] = ()
    plan: Plan | None = None
    tuned: bool = True

    @classmethod
    def checked(cls, **named: Any) -> LoadOptions:
        """Check every argument that can be checked without the file."""
        if named["n_ctx"] not in (None, "model"):
            named["n_ctx"] = count("n_ctx", named["n_ctx"], 2)
        for name in ("threads", "threads_batch"):
            if named[name] is not None:
                named[name] = count(name, named[name], 1, MAX_THREADS)
        named["n_batch"] = count("n_batch", named["n_batch"], 1, MAX_BATCH)
        if named["n_ubatch"] is not None:
            named["n_ubatch"] = count("n_ubatch", named["n_ubatch"], 1, MAX_BATCH)
        if named["kv_type"] not in KV_TYPES:
            raise ArgumentError(f"kv_type = {named['kv_type']!r}; allowed: {', '.join(KV_TYPES)}")
        named["n_gpu_layers"] = _layers(named.get("n_gpu_layers"))
        if named.get("device", 0) is not None:
            named["device"] = count("device", named.get("device", 0), 0, 1023)
        elif named["n_gpu_layers"] not in (None, "auto", 0):
            raise ArgumentError(f"n_gpu_layers = {named['n_gpu_layers']!r} and device = None: give one of them")
        _check_placement(named)
        made = cls(**named)
        made.rules.overrides(), made.rules.places()  # whether they can be read
        return made

    @property
    def rules(self) -> Rules:
        """What the arguments say about where things lie."""
        return Rules(
            n_gpu_layers=self.n_gpu_layers,
            place=self.place,
            override_tensor=self.override_tensor,
            n_cpu_ffn=self.n_cpu_ffn,
            kv_offload=self.kv_offload,
            split_mode=self.split_mode,
            tensor_split=self.tensor_split,
            main_gpu=self.device or 0,
        )

    @property
    def wants_gpu(self) -> bool:
        """Whether a GPU was asked for, so that there must be one."""
        return self.rules.want_gpu or bool(self.gpu_memory)

    @property
    def repeats(self) -> bool:
        """Whether a plan is replayed. Raises ArgumentError if rules are given beside it."""
        if self.plan is None:
            return False
        usual = Rules(main_gpu=self.device or 0)
        if self.rules != usual or self.gpu_memory or not self.fit or self.n_ubatch is not None:
            raise ArgumentError("a plan is replayed as it is: give no other placement, budget, fit or n_ubatch with it")
        return True

    def context(self, trained: int) -> int:
        """The context to use for a model that was trained with `trained` tokens.

        The default is the model's own, at most DEFAULT_CONTEXT: 128k tokens of cache would not fit most machines.
        """
        if self.n_ctx == "model":
            return trained
        if self.n_ctx is None:
            return min(trained, DEFAULT_CONTEXT)
        return int(self.n_ctx)


def _check_placement(named: dict[str, Any]) -> None:
    """Checks and completes what says where things lie."""
    named["gpu_memory"] = _numbers("gpu_memory", named.get("gpu_memory"), 1, 1 << 30)
    named["fit_margin"] = _numbers("fit_margin", named.get("fit_margin"), 0, 1 << 30)
    place, rules = named.get("place"), named.get("override_tensor") or ()
    if place is not None and not isinstance(place, str):
        raise ArgumentError(f"place = {place!r}; a text such as 'blk.0-19=cuda0,blk.20-31=cpu' is needed")
    rules = (rules,) if isinstance(rules, str) else tuple(rules)
    if not all(isinstance(rule, str) for rule in rules):
        raise ArgumentError(f"override_tensor = {rules!r}; texts such as r'ffn_.*=cpu' are needed")
    named["override_tensor"] = rules
    named["n_cpu_ffn"] = count("n_cpu_ffn", named.get("n_cpu_ffn") or 0, 0)
    named["fit_ctx"] = count("fit_ctx", named.get("fit_ctx") or LEAST_CONTEXT, 2)
    if named.get("split_mode", "layer") not in SPLIT_MODES:
        raise ArgumentError(f"split_mode = {named['split_mode']!r}; allowed: {', '.join(SPLIT_MODES)}")
    split = named.get("tensor_split") or ()
    shares = (split,) if isinstance(split, (int, float)) else tuple(split)
    if any(isinstance(x, bool) or not isinstance(x, (int, float)) or not 0 <= x < float("inf") for x in shares):
        raise ArgumentError(f"tensor_split = {split!r}; numbers from 0 on are needed, one for each GPU")
    if shares and not sum(shares):
        raise ArgumentError("tensor_split: at least one share must be above 0")
    named["tensor_split"] = tuple(float(x) for x in shares)
    plan = named.get("plan")
    if plan is not None and not isinstance(plan, Plan):
        try:
            named["plan"] = Plan.from_json(Path(plan).read_text(encoding="utf-8"))
        except (OSError, TypeError, UnicodeDecodeError) as error:
            raise ArgumentError(f"plan = {plan!r} cannot be read: {error}") from error


def _numbers(name: str, value: Any, low: int, high: int) -> tuple[int, ...]:
    """One number of MiB or several."""
    if value is None:
        return ()
    several = value if isinstance(value, (list, tuple)) else (value,)
    return tuple(count(name, one, low, high) for one in several)


def _layers(value: Any) -> int | str | None:
    if value is None or value in ("auto", "all"):
        return value  # type: ignore[no-any-return]
    try:
        return count("n_gpu_layers", value, 0)
    except ArgumentError:
        raise ArgumentError(f"n_gpu_layers = {value!r}; allowed: 'all', 'auto', or a number from 0 on") from None


def token_ids(name: str, ids: Iterable[Any], n_vocab: int) -> list[int]:
    """`ids` as integers of the vocabulary."""
    try:
        out = [operator.index(token) for token in ids]
    except TypeError:
        raise ArgumentError(f"{name}: token ids are integers") from None
    if out and not 0 <= min(out) <= max(out) < n_vocab:
        bad = next(token for token in out if not 0 <= token < n_vocab)
        raise ArgumentError(f"{name}: token id {bad} is outside the vocabulary of {n_vocab} tokens")
    return out


def row_indices(rows: Iterable[Any] | None, n: int) -> list[int]:
    """The positions that `rows` names, from 0 to n - 1; negative ones count from the end, None means all."""
    if rows is None:
        return list(range(n))
    out = []
    if not isinstance(rows, Iterable):
        raise ArgumentError(f"rows = {rows!r}: a list of positions is needed, such as [-1] for the last")
    for row in rows:
        index = count("rows", row, -n, n - 1)
        out.append(index + n if index < 0 else index)
    return out
