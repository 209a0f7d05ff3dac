"""Plans made on this machine: its GPUs, its memory and its rates, for a file and the arguments of `load`."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hybridkern.errors import ArgumentError, HybridKernError, KernelError, OutOfMemoryError
from hybridkern.gguf import GGUFFile
from hybridkern.kernels.cpu.selection import chosen_name
from hybridkern.model import LoadedModel
from hybridkern.plan.assignment import CPU
from hybridkern.plan.devices import MARGIN, MIB, Gpu, Host
from hybridkern.plan.inventory import Inventory
from hybridkern.plan.plan import Plan
from hybridkern.plan.planning import Task, check_replay, fingerprint, make_plan
from hybridkern.plan.rates import Rates
from hybridkern.plan.sizes import Shape
from hybridkern.plan.unread import Unread

from . import footprint, tuned
from .arguments import LoadOptions
from .calibration import are_known, calibrate, known_rates
from .engine import GPU_LOGITS_BYTES, GPU_SPARE_PAGES, LOGITS_BYTES
from .locate import locate
from .threads import default_threads
from .tuned import Tuned

N_SEQ = 64  # sequences at a time
TRIES = 3  # plans made again
PRETENDED = 1 << 60  # bytes of a GPU that is not there
_said: set[str] = set()


def plan(path: str | os.PathLike[str] | None, **options: Any) -> Plan:
    """Where a model would lie, and how fast it would be, with these arguments of `hybridkern.load`. No tensor data are
    read. With `gpu_memory` and without a GPU, one of that size is pretended."""
    checked = LoadOptions.checked(**(_DEFAULTS | options))
    with GGUFFile.open(locate(path).path) as file:
        return plan_file(file, checked)


def surroundings(path: str | os.PathLike[str] | None, **options: Any) -> tuple[dict[str, Any], list[Gpu]]:
    """What tuning depends on with these arguments of `load` (`tuned.facts`), and the GPUs that a plan may use."""
    checked = LoadOptions.checked(**(_DEFAULTS | options))
    with GGUFFile.open(locate(path).path) as file:
        gpus, others = find_gpus(checked, True)
        trained = LoadedModel.from_gguf(Unread(file)).config.context_length
        return tuned.facts(checked, trained, gpus, others), gpus


_DEFAULTS: dict[str, Any] = {
    "n_ctx": None, "threads": None, "threads_batch": None, "n_batch": 2048, "n_ubatch": None, "kv_type": "f16",
    "mmap": True, "mlock": False, "validate": False,
}  # fmt: skip


def plan_file(file: GGUFFile, options: LoadOptions) -> Plan:
    """The plan of an open, mapped file; nothing is calibrated for it."""
    return Planner(LoadedModel.from_gguf(Unread(file)), file, options, pretends=True).plan()


class Planner:
    """Of one model. pretends: whether a GPU that is not there may be planned for; then nothing is calibrated either."""

    def __init__(self, model: LoadedModel, file: GGUFFile, options: LoadOptions, pretends: bool = False) -> None:
        self._model, self._file, self._options, self._pretends = model, file, options, pretends
        self._name = os.path.basename(file.path)
        self.options = options  # with what was tuned
        self._tuned_failed = ""

    @property
    def replays(self) -> bool:
        """Whether the plan was given."""
        return self._options.repeats

    def plan(self) -> Plan:
        """Raises ArgumentError, KernelError where a GPU that was asked for cannot be used, OutOfMemoryError."""
        options = self._options
        if options.repeats:
            assert options.plan is not None
            check_replay(options.plan, self._model)
            return replace(options.plan, tuned="")
        gpus, others = find_gpus(options, self._pretends)
        record, said = self._tuned(gpus, others)
        if record is None:
            self.options = options
            return replace(self._placed(gpus, others), tuned=said)
        self._tuned_failed = "memory is short"  # if this is asked for again
        self.options = record.applied(options)
        if record.plan is not None:
            return replace(record.plan, tuned=record.summary())
        return replace(self._placed(gpus, others), tuned=record.summary())

    def _tuned(self, gpus: Sequence[Gpu], others: Sequence[int]) -> tuple[Tuned | None, str]:
        """What was tuned for this model and counts here, or why it does not."""
        if not self._options.tuned:
            return None, ""
        try:
            mark = fingerprint(Inventory.of(self._model))
            record = tuned.read(mark)
        except tuned.DamagedFile as error:
            _say(f"what `hybridkern tune` kept is not used: {error}; tune again, or remove the file")
            return None, ""
        if record is None:
            return None, ""
        options = self._options
        now = tuned.facts(options, self._model.config.context_length, gpus, others)
        why = tuned.changed(record.facts, now) or tuned.contradiction(options, record, gpus) or self._tuned_failed
        why = why or tuned.short(record, options, gpus, footprint.available_memory())
        if record.plan is not None and record.plan.fingerprint != mark:
            why = "its plan is of another model"
        return (None, f"what was tuned is not used: {why}") if why else (record, "")

    def _placed(self, gpus: Sequence[Gpu], others: Sequence[int]) -> Plan:
        """One GPU, if it holds everything; else all."""
        options = self.options
        if others and not options.tensor_split and len(options.gpu_memory) < 2:
            try:
                made = self._on(gpus)
            except (OutOfMemoryError, ArgumentError):
                made = None
            if made is not None and made.assignment.devices == (gpus[0].name,):
                return made
        found = [*gpus, *(_asked(number, options) for number in others)]
        return self._on(sorted(found, key=lambda g: int(g.name[4:])))

    def _on(self, gpus: Sequence[Gpu]) -> Plan:
        try:
            return self._chosen(gpus)
        except KernelError as error:  # a cache or a format that no kernel of a GPU knows
            if not gpus or self.options.wants_gpu:
                raise
            _say(f"everything runs on the CPU: {error}")
            return self._chosen([])

    def _chosen(self, gpus: Sequence[Gpu]) -> Plan:
        """By known rates; where they decide something and nobody has measured them, they are measured first."""
        numbers = [int(g.name[4:]) for g in gpus if not g.pretended]
        made = self._made(gpus, known_rates(numbers, self._threads))
        decided = bool(gpus) and CPU in made.assignment.devices  # what lies where, or what is streamed
        if self._pretends or not decided or are_known(numbers, self._threads):
            return made
        _say("measuring the rates of this machine, once, for two seconds (`hybridkern doctor` shows them)")
        try:
            rates = calibrate(numbers, self._threads)
        except OutOfMemoryError as error:
            _say(f"the rates of this machine could not be measured, built-in ones are used: {error}")
            return made
        return self._made(gpus, rates)

    def _made(self, gpus: Sequence[Gpu], rates: Rates) -> Plan:
        return make_plan(self._model, self._task(), gpus, self._host(), rates)

    @property
    def _threads(self) -> int:
        """Whose rates are known: those of the usual number tell about tuned ones too."""
        return self._options.threads or default_threads()

    def _host(self) -> Host:
        return Host(footprint.available_memory(), self.options.threads or default_threads())

    def _task(self) -> Task:
        o, config = self.options, self._model.config
        n_vocab = config.n_vocab
        n_ctx = o.context(config.context_length)

        def outputs(rows: int, on_gpu: bool) -> int:
            return max(1, min(rows, (GPU_LOGITS_BYTES if on_gpu else LOGITS_BYTES) // (4 * n_vocab)))

        return Task(
            name=self._name,
            shape=Shape(n_ctx, o.n_batch, o.kv_type, N_SEQ, GPU_SPARE_PAGES, outputs),
            rules=o.rules,
            n_ubatch=o.n_ubatch,
            least_ctx=o.fit_ctx if o.n_ctx is None else None,
            packed=o.repack,
            mapped=self._file.mmap or self._pretends,
            fit=o.fit,
            streams=o.op_offload,
            kernels=chosen_name(),
        )


def find_gpus(options: LoadOptions, pretends: bool) -> tuple[list[Gpu], list[int]]:
    """The GPU that a plan may use first, and the numbers of others that it may use if the split is by layers. Raises
    KernelError if one was asked for and cannot be used; says so once if none was."""
    rules, main, wanted = options.rules, options.device, options.wants_gpu
    if main is None:
        return [], []
    if options.n_gpu_layers == 0 and not wanted and not options.op_offload:
        return [], []
    from hybridkern.kernels.cuda import driver
    from hybridkern.kernels.cuda.cache_layout import KV_TYPES as GPU_KV_TYPES
    from hybridkern.kernels.cuda.device import Device

    try:
        n = len(driver.gpus())
    except HybridKernError as error:
        if pretends and options.gpu_memory:
            return [_budgeted(_pretended(i), options) for i in range(len(options.gpu_memory))], []
        if wanted:
            Device.get(main)  # says more
            raise
        if rules.n_gpu_layers == "auto":
            _say(f"-ngl auto: everything runs on the CPU: {error}")
        return [], []
    if options.kv_type not in GPU_KV_TYPES:
        if wanted:
            raise ArgumentError(f"kv_type {options.kv_type!r}: a cache on the GPU is {', '.join(GPU_KV_TYPES)}")
        _say(f"everything runs on the CPU: a cache on the GPU is {', '.join(GPU_KV_TYPES)}, not {options.kv_type}")
        return [], []
    others = [i for i in range(n) if i != main] if rules.split_mode == "layer" else []
    if len(options.gpu_memory) > 1 + len(others):
        raise ArgumentError(f"gpu_memory names {len(options.gpu_memory)} GPUs; {1 + len(others)} can be used")
    try:
        return [_asked(main, options)], others
    except KernelError as error:
        if wanted or main != 0:
            raise
        _say(f"everything runs on the CPU: {error}")
        return [], []


def _asked(number: int, options: LoadOptions) -> Gpu:
    """A GPU as it is now, with what the arguments say of it."""
    from hybridkern.kernels.cuda.device import Device
    from hybridkern.kernels.cuda.driver import Memory, memory_info
    from hybridkern.kernels.cuda.sizing import Limits

    device = Device.get(number)
    if Memory.live:
        gc.collect()  # models refer to themselves, and what nobody can reach any more is to be given back first
    free, _ = device.run(memory_info)
    limits = Limits(device.processors, device.block_memory, device.capability, device.wgmma)
    return _budgeted(Gpu(f"cuda{number}", device.name, free, limits=limits), options)


def _pretended(number: int) -> Gpu:
    return Gpu(f"cuda{number}", "a GPU that is pretended", PRETENDED, pretended=True)


def _budgeted(gpu: Gpu, options: LoadOptions) -> Gpu:
    """With the budget and the margin of the arguments: one number for all GPUs, or one for each."""
    i = int(gpu.name[4:])

    def of(values: tuple[int, ...], otherwise: int | None) -> int | None:
        return otherwise if not values else values[i if i < len(values) else -1] * MIB

    budget = of(options.gpu_memory, None)
    # What was asked for by hand may take what there is, to the last byte.
    usual = MARGIN if budget is None and options.rules.fills and options.fit else 0
    return replace(gpu, budget=budget, margin=of(options.fit_margin, usual) or 0)


def _say(text: str) -> None:
    """A warning, once in a process."""
    if text not in _said:
        _said.add(text)
        warnings.warn(text, stacklevel=2)


def engine_placement(plan: Plan) -> dict[str, Any]:
    """The arguments of an engine that follows a plan. What lies on one device has ways of its own there."""
    devices = plan.assignment.devices
    if len(devices) > 1:
        return {"assignment": plan.assignment}
    return {"device": None if devices == (CPU,) else int(devices[0][4:])}


def replanned(make: Callable[[Plan], Any], planner: Planner) -> tuple[Plan, Any]:
    """What `make` makes of a plan. Where memory that the plan counted on was taken meanwhile, it is planned again with
    what is free, at most three times, each said."""
    for attempt in range(TRIES + 1):
        made = planner.plan()
        try:
            return made, make(made)
        except OutOfMemoryError as error:
            if attempt == TRIES or planner.replays or made.assignment.devices == (CPU,):
                raise
            why = str(error)
        gc.collect()
        warnings.warn(
            f"planning again with the memory that is free now ({attempt + 1} of {TRIES}): {why}", stacklevel=4
        )
    raise AssertionError
