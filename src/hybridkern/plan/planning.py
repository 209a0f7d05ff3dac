"""From a model, its devices, the user's rules and measured rates to a plan. Opens no device, reads no data."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hybridkern.errors import ArgumentError, OutOfMemoryError
from hybridkern.kernels.cpu.sizing import cache_page_bytes, packed_bytes
from hybridkern.kernels.cuda.layout import device_bytes
from hybridkern.kernels.cuda.sizing import head_bytes
from hybridkern.kernels.interface import KVSpec
from hybridkern.model import LoadedModel

from .assignment import CPU, Assignment, checked
from .devices import GRAPH_BYTES, MIB, Gpu, Host
from .fitting import UBATCHES, Fitter, Options
from .inventory import Inventory, Matrix
from .plan import DevicePlan, Plan, Row
from .predict import CostModel
from .rates import Rates
from .rules import Fixed, Rules, resolve
from .sizes import Shape, Sizer

CONTEXT_STEP = 256  # tokens by which fitting shrinks a context
CPU_UBATCH = 512
LEAST_SPARE = 2  # pages of a cache on a GPU beyond one full context, where memory is short
SHOWN_PROMPT, SHOWN_ANSWER = 512, 128
KV_TYPES, MOST_CTX = ("f16", "q8_0", "q4_0", "f32"), 1 << 30


@dataclass(frozen=True)
class Task:
    """What is to be planned. shape: its n_ctx is the wanted one, and fitting may shrink it to `least_ctx` unless that
    is None. n_ubatch: None leaves it to the plan. packed: whether the CPU's weights are packed, None: if memory allows.
    mapped: the file is. streams: whether weights may be streamed. kernels: of the CPU."""

    name: str
    shape: Shape
    rules: Rules
    n_ubatch: int | None = None
    least_ctx: int | None = None
    packed: bool | None = None
    mapped: bool = True
    fit: bool = True
    streams: bool = True
    kernels: str = "cpu"


def make_plan(model: LoadedModel, task: Task, gpus: Sequence[Gpu], host: Host, rates: Rates) -> Plan:
    """Raises ArgumentError for rules that cannot be used, OutOfMemoryError where nothing fits."""
    inventory = Inventory.of(model)
    fixed = resolve(_with_fit(task), inventory, [g.name for g in gpus])
    notes = list(fixed.notes)
    cost = CostModel(inventory, rates, task.shape.kv_type)
    sizer, assignment = _fitted(model, inventory, fixed, task, gpus, cost)
    if sizer.shape.n_ctx < task.shape.n_ctx:
        notes.append(f"the context is {sizer.shape.n_ctx} tokens instead of {task.shape.n_ctx}, to fit; -c fixes it")
    packed = _packs(task, sizer, assignment, host, notes)
    return _described(model, task, inventory, sizer, cost, assignment, gpus, host, packed, notes)


def _with_fit(task: Task) -> Rules:
    """Without fitting, what no rule places goes to the GPUs."""
    if not task.fit and task.rules.n_gpu_layers in (None, "auto"):
        return replace(task.rules, n_gpu_layers="all")
    return task.rules


def _fitted(
    model: LoadedModel, inventory: Inventory, fixed: Fixed, task: Task, gpus: Sequence[Gpu], cost: CostModel
) -> tuple[Sizer, Assignment]:
    """The whole context if that fits, else the longest that does."""
    shape = task.shape
    fills = task.fit and task.rules.n_gpu_layers in (None, "auto")
    if task.n_ubatch is not None:
        ubatches: tuple[int, ...] = (min(task.n_ubatch, shape.n_batch),)
    elif not gpus:
        ubatches = (min(CPU_UBATCH, shape.n_batch),)
    else:
        longest = max(CPU_UBATCH, shape.n_ctx)
        ubatches = tuple(sorted({min(u, shape.n_batch) for u in UBATCHES if u <= longest}))
    shares = task.rules.tensor_split
    options = Options(tuple(gpus), fills, task.streams, ubatches, shares)

    def at(n_ctx: int) -> tuple[Sizer, Assignment]:
        """With room for further sequences where everything fits: a full context may be half of a GPU."""
        sizer = Sizer(model, inventory, replace(shape, n_ctx=n_ctx))
        fitter = Fitter(inventory, fixed, sizer, cost, options)
        if gpus and not fitter.holds_all():
            spare = min(LEAST_SPARE, shape.spare_pages)
            sizer = Sizer(model, inventory, replace(shape, n_ctx=n_ctx, spare_pages=spare))
            fitter = Fitter(inventory, fixed, sizer, cost, options)
        return sizer, fitter.best()

    try:
        return at(shape.n_ctx)
    except OutOfMemoryError:
        least = task.least_ctx
        if not task.fit or least is None or least >= shape.n_ctx:
            raise
        low, high = least, shape.n_ctx
        found = at(least)  # or the error that says what does not fit even then
        while high - low > CONTEXT_STEP:
            middle = (low + high) // 2 // CONTEXT_STEP * CONTEXT_STEP
            if middle in (low, high):
                break
            try:
                found, low = at(middle), middle
            except OutOfMemoryError:
                high = middle
        return found


def _packs(task: Task, sizer: Sizer, assignment: Assignment, host: Host, notes: list[str]) -> bool:
    """Whether the CPU's weights are packed, which takes memory beside the file's."""
    need = sum(sizer.host(assignment, True).values())
    if task.packed is not None or not task.mapped or host.free is None or need <= host.free:
        return task.packed is not False
    notes.append(
        f"packing the CPU's weights takes {need // MIB} MiB, and {host.free // MIB} MiB are available: they are "
        "multiplied as they lie in the file, which is slower (repack=True or --repack packs all the same)"
    )
    return False


def fingerprint(inventory: Inventory) -> str:
    """Of names, types and shapes of the tensors that are placed."""
    digest = hashlib.sha256()
    for m in [inventory.embedding, *inventory.matrices(), inventory.head]:
        digest.update(f"{m.name} {m.weight.type} {m.weight.rows} {m.weight.cols}\n".encode())
    return digest.hexdigest()[:16]


def check_replay(plan: Plan, model: LoadedModel) -> None:
    """Raises ArgumentError unless the plan is of this model."""
    inventory, a = Inventory.of(model), plan.assignment
    if plan.fingerprint != fingerprint(inventory):
        raise ArgumentError(f"the plan was made for another model ({plan.model}): plan again")
    names = {m.name for m in inventory.matrices()}
    if set(a.tensors) != names or len(a.kv) != len(inventory.blocks):
        odd = sorted(names ^ set(a.tensors))
        what = odd[0] if odd else f"the caches of {len(a.kv)} instead of {len(inventory.blocks)} blocks"
        raise ArgumentError(f"the plan does not place this model, it was changed by hand (see {what}): plan again")
    named = {"embedding": a.embedding, "head": a.head, **a.tensors}
    named |= {f"block {b}": d for b, d in [*enumerate(a.kv), *a.streamed.items()]}
    odd = [f"{name} on {d!r}" for name, d in named.items() if not re.fullmatch(r"cpu|cuda\d{1,4}", d)]
    odd += [f"n_ctx {plan.n_ctx}"] if not 1 <= plan.n_ctx <= MOST_CTX else []
    odd += [f"n_ubatch {a.n_ubatch}"] if a.n_ubatch < 1 else []
    odd += [f"kv_type {plan.kv_type!r}"] if plan.kv_type not in KV_TYPES else []
    odd += [f"kv_pages {plan.kv_pages}"] if plan.kv_pages is not None and plan.kv_pages < 1 else []
    if min(a.stream_from, a.stream_depth, a.stream_kept) < 0 or a.stream_kept > a.stream_depth:
        odd.append(f"stream_from {a.stream_from}, stream_depth {a.stream_depth}, stream_kept {a.stream_kept}")
    if odd:
        raise ArgumentError(f"the plan says what cannot be, it was changed by hand (see {odd[0]}): plan again")
    checked(a)


def _described(
    model: LoadedModel, task: Task, inventory: Inventory, sizer: Sizer, cost: CostModel, a: Assignment,
    gpus: Sequence[Gpu], host: Host, packed: bool, notes: list[str],
) -> Plan:  # fmt: skip
    shape = sizer.shape
    kernels = {CPU: task.kernels} | {g.name: f"cuda sm_{g.limits.capability[0]}{g.limits.capability[1]}" for g in gpus}
    devices = []
    memory = sizer.host(a, packed)
    if memory:
        devices.append(DevicePlan(CPU, f"CPU, {host.threads} threads", task.kernels, memory, host.free))
    for g in gpus:
        held = sizer.gpu(a, g)
        if held:
            held["CUDA graphs"] = GRAPH_BYTES
            devices.append(DevicePlan(g.name, g.label, kernels[g.name], held, g.usable, g.context))
    prompt = max(1, min(SHOWN_PROMPT, shape.n_ctx - 1))
    token, step = cost.step(a, 1, 0), cost.step(a, a.n_ubatch, 0)
    rows = _rows(model.kv_specs, inventory, shape, a, packed, kernels, token.blocks, step.blocks)
    rest = [(inventory.embedding, a.embedding, 0.0, 0.0), (inventory.head, a.head, token.rest, step.rest)]
    ends = [
        Row(m.role, d, kernels[d], "", {d: _nbytes(m, d, packed, m.role == "head")}, 0, s, t) for m, d, s, t in rest
    ]
    return Plan(
        model=task.name, fingerprint=fingerprint(inventory), n_ctx=shape.n_ctx, kv_type=shape.kv_type,
        kv_pages=_pages(shape, a), packed=packed, assignment=a, devices=tuple(devices),
        rows=(ends[0], *rows, ends[1]), load=cost.load(a, packed), prompt=prompt,
        prefill=prompt / cost.prompt(a, prompt), decode=1 / cost.token(a, min(SHOWN_ANSWER, shape.n_ctx - 1)),
        decode_full=1 / cost.token(a, shape.n_ctx - 1), crossings=token.crossings, copied=step.copied,
        rates=cost.rates.origin, notes=tuple(notes),
    )  # fmt: skip


def _pages(shape: Shape, a: Assignment) -> int | None:
    """Of the cache, None for as many as main memory usually has."""
    return None if set(a.kv) == {CPU} else shape.max_pages + shape.spare_pages


def _nbytes(m: Matrix, device: str, packed: bool, product: bool = True) -> int:
    """In the layout of a device; a table of which rows are read stays in the file."""
    w = m.weight
    if device == CPU:
        return (packed_bytes(w) if packed else m.file_bytes) if product else 0
    return device_bytes(w.type, w.rows, w.cols)


def _rows(
    specs: Sequence[KVSpec], inventory: Inventory, shape: Shape, a: Assignment, packed: bool, kernels: dict[str, str],
    tokens: Sequence[float], steps: Sequence[float],
) -> list[Row]:  # fmt: skip
    rows = []
    for b, spec in zip(inventory.blocks, specs, strict=True):
        weights: dict[str, int] = {}
        for m in b.matrices:
            d = a.tensors[m.name]
            weights[d] = weights.get(d, 0) + _nbytes(m, d, packed)
        kv = a.kv[b.index]
        page = cache_page_bytes([spec], shape.kv_type) if kv == CPU else spec.n_kv * head_bytes(shape.kv_type, spec)
        on = sorted(weights, key=lambda d: (d == CPU, d))
        rows.append(
            Row(
                f"blk.{b.index}", "+".join(on), "+".join(kernels[d] for d in on), kv, weights, page * shape.max_pages,
                tokens[b.index], steps[b.index], b.index in a.streamed, b.index in a.kept,
            )
        )  # fmt: skip
    return rows
