"""What the user fixed by hand, for every tensor and every cache; where two rules disagree, which of them won.

The more particular rule wins: -ot before --place before --n-cpu-ffn and -nkvo before -ngl; of several -ot, or several
parts of --place, the first that matches.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hybridkern.errors import ArgumentError

from .assignment import CPU
from .inventory import Inventory, Matrix

ANY_GPU = "gpu"  # one of the GPUs, whichever the split gives
_RANGE = re.compile(r"(blk|kv)\.(\*|\d+)(?:-(\d+))?(?:\.(attn|ffn))?$")
_DEVICE = re.compile(r"cpu|cuda_host|cuda\d{1,3}", re.IGNORECASE)
_PLACES = "blk.3, blk.0-19, blk.*.ffn, blk.*.attn, kv.0-19, embd, head"


@dataclass(frozen=True)
class Rules:
    """As the flags say them; see hybridkern.load."""

    n_gpu_layers: int | str | None = None
    place: str | None = None
    override_tensor: tuple[str, ...] = ()
    n_cpu_ffn: int = 0
    kv_offload: bool = True
    split_mode: str = "layer"
    tensor_split: tuple[float, ...] = ()
    main_gpu: int = 0

    @property
    def want_gpu(self) -> bool:
        """Whether a GPU was asked for, so that there must be one."""
        named = [d for _, d in self.overrides()] + [d for _, d in self.places()]
        layers = self.n_gpu_layers
        return (
            (layers not in (None, "auto", 0))
            or any(d.lower() not in (CPU, "cuda_host") for d in named)
            or bool(self.tensor_split)
        )

    @property
    def fills(self) -> bool:
        """Whether what no rule places is placed by fitting."""
        return self.n_gpu_layers in (None, "auto")

    def overrides(self) -> list[tuple[str, str]]:
        """(pattern, device) of every -ot, in order."""
        return [pair for text in self.override_tensor for pair in _pairs("override_tensor (-ot)", text)]

    def places(self) -> list[tuple[str, str]]:
        """(blocks, device) of --place, in order."""
        return list(_pairs("place (--place)", self.place)) if self.place else []


@dataclass
class Fixed:
    """tensors, kv: device of the blocks' tensors by name and of caches by block, ANY_GPU where only that is said; what
    is missing, or None, is free. notes: which rules won."""

    tensors: dict[str, str] = field(default_factory=dict)
    embedding: str | None = None
    head: str | None = None
    kv: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def _pairs(what: str, text: str) -> Iterator[tuple[str, str]]:
    """PATTERN=DEVICE, several separated by commas; a comma inside of a pattern stays where it is."""
    pending = ""
    for piece in text.split(","):
        pending = f"{pending},{piece}" if pending else piece
        if "=" not in piece:
            continue
        pattern, _, device = pending.rpartition("=")
        if not pattern.strip() or not device.strip():
            raise ArgumentError(f"{what}: {pending!r} is not PATTERN=DEVICE")
        if not _DEVICE.fullmatch(device.strip()):
            raise ArgumentError(f"{what}: {device.strip()!r} is no device; allowed are cpu, cuda0, cuda1, ...")
        yield pattern.strip(), device.strip()
        pending = ""
    if pending or not text:
        raise ArgumentError(f"{what}: {pending or text!r} is not PATTERN=DEVICE")


def device_named(text: str, gpus: Sequence[str], what: str) -> str:
    """ "cpu" or the name of a GPU, from "CPU", "CUDA0", "cuda0", "CUDA_Host"."""
    name = text.lower()
    if name in (CPU, "cuda_host"):
        return CPU
    if name not in gpus:
        there = f"this process sees {len(gpus)} ({', '.join(gpus)})" if gpus else "this process sees none"
        raise ArgumentError(f"{what}: there is no GPU {name}: {there}")
    return name


Rule = tuple[str, Callable[[Matrix], bool], str]  # how it was said, what it is about, the device


def resolve(rules: Rules, inventory: Inventory, gpus: Sequence[str]) -> Fixed:
    """Raises ArgumentError for a rule that cannot be used: a bad pattern, one without a match, no such device."""
    n_layer = len(inventory.blocks)
    if len(rules.tensor_split) > max(1, len(gpus)):
        given = ",".join(f"{x:g}" for x in rules.tensor_split)
        raise ArgumentError(f"tensor_split = {given}: {len(rules.tensor_split)} GPUs are named, there are {len(gpus)}")
    ordered, caches = [*_overrides(rules, inventory, gpus)], []
    for text, device in rules.places():
        said = f"--place {text}={device}"
        about, blocks = _place(text, said, n_layer)
        to = device_named(device, gpus, said)
        ordered.append((said, about, to))
        caches.append((said, blocks, to))
    if rules.n_cpu_ffn:
        n, said = rules.n_cpu_ffn, f"--n-cpu-ffn {rules.n_cpu_ffn}"
        ordered.append((said, lambda m: m.role == "ffn" and m.block is not None and m.block < n, CPU))
    ordered += _layers(rules, n_layer, bool(gpus))
    fixed = Fixed()
    won: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], str] = {}
    for m in [inventory.embedding, *inventory.matrices(), inventory.head]:
        matching = [(said, to) for said, about, to in ordered if about(m)]
        if matching and m.block is not None:
            fixed.tensors[m.name] = matching[0][1]
        elif matching:
            setattr(fixed, m.role, matching[0][1])
        for said, to in matching[1:]:
            agree = to == matching[0][1] or (to == ANY_GPU and matching[0][1] != CPU)
            if said != matching[0][0] and not agree:
                won[matching[0][0], said] += 1
                first.setdefault((matching[0][0], said), m.name)
    for (winner, loser), n in won.items():
        more = f" and {n - 1} more tensors" if n > 1 else ""
        fixed.notes.append(f"{winner} wins over {loser} for {first[winner, loser]}{more}")
    _fix_caches(rules, fixed, caches, n_layer)
    return fixed


def _overrides(rules: Rules, inventory: Inventory, gpus: Sequence[str]) -> Iterator[Rule]:
    names = inventory.names()
    for pattern, device in rules.overrides():
        said = f"-ot {pattern}={device}"
        to = device_named(device, gpus, said)
        try:
            regex = re.compile(pattern)
        except re.error as error:
            raise ArgumentError(f"{said}: the pattern is no regular expression: {error}") from error
        if not any(regex.search(name) for name in names):
            near = [n for n in names if n.startswith("blk.0.")] or names
            raise ArgumentError(f"{said}: the pattern matches no matrix of this model, such as {', '.join(near[:3])}")
        yield said, lambda m, r=regex: bool(r.search(m.name)), to  # type: ignore[misc]


def _place(text: str, said: str, n_layer: int) -> tuple[Callable[[Matrix], bool], range]:
    """What a part of --place is about, and the blocks whose caches it names."""
    name = text.removesuffix(".weight")
    if name in ("embd", "token_embd", "embedding"):
        return lambda m: m.role == "embedding", range(0)
    if name in ("head", "output"):
        return lambda m: m.role == "head", range(0)
    found = _RANGE.match(text)
    if found is None:
        raise ArgumentError(f"{said}: {text!r} names no part of a model; allowed are {_PLACES}")
    kind, low, high, role = found.groups()
    blocks = range(n_layer) if low == "*" else range(int(low), int(high or low) + 1)
    if not blocks or blocks[-1] >= n_layer:
        raise ArgumentError(f"{said}: the blocks of this model are 0 to {n_layer - 1}")
    wanted = {"attn": "attention", "ffn": "ffn"}.get(role or "")
    if kind == "kv":
        if role:
            raise ArgumentError(f"{said}: a cache has no parts; write {text.removesuffix('.' + role)}")
        return lambda m: False, blocks
    return lambda m: m.block in blocks and wanted in (None, m.role), range(0) if role == "ffn" else blocks


def _layers(rules: Rules, n_layer: int, some: bool) -> Iterator[Rule]:
    layers = rules.n_gpu_layers
    if layers == "all" or (isinstance(layers, int) and layers > n_layer):
        yield f"-ngl {layers}", lambda m: True, ANY_GPU if some else CPU
    elif isinstance(layers, int):
        first = n_layer - max(0, layers - 1)
        said = f"-ngl {layers}"
        if layers:
            yield said, lambda m: m.role == "head" or (m.block is not None and m.block >= first), ANY_GPU
        yield said, lambda m: True, CPU


def _fix_caches(rules: Rules, fixed: Fixed, places: list[tuple[str, range, str]], n_layer: int) -> None:
    for block in range(n_layer):
        said = next(((s, to) for s, blocks, to in places if block in blocks), None)
        if said is not None:
            fixed.kv[block] = said[1]
        elif not rules.kv_offload:
            fixed.kv[block] = CPU
    if not rules.kv_offload and any(to != CPU for to in fixed.kv.values()):
        fixed.notes.append("--place wins over -nkvo for the caches that it names")
