"""A plan: where everything of a model lies and how fast that will be. `planning.py` makes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hybridkern.errors import ArgumentError

from .assignment import Assignment

VERSION = 1


@dataclass(frozen=True)
class DevicePlan:
    """What a device holds. memory: bytes by purpose; usable: bytes that it may hold, None: unknown; context: bytes that
    CUDA takes besides; kernels: name of the kernel set."""

    name: str
    label: str
    kernels: str
    memory: Mapping[str, int]
    usable: int | None
    context: int = 0

    @property
    def nbytes(self) -> int:
        """All together, the context apart."""
        return sum(self.memory.values())


@dataclass(frozen=True)
class Row:
    """A block, or what is not one. weights: device -> bytes in its layout there; decode, prefill: predicted seconds of
    a token and of a step of n_ubatch tokens, crossings included; kept: streamed, and on the GPU between prompts."""

    name: str
    device: str
    kernels: str
    kv: str
    weights: Mapping[str, int]
    cache: int
    decode: float
    prefill: float
    streamed: bool = False
    kept: bool = False


@dataclass(frozen=True)
class Plan:
    """Of one model. fingerprint: of its tensors' names, types and shapes; kv_pages: pages of the cache,
    None for the engine's own number; packed: whether the CPU's weights are packed;
    load: seconds, the file being in the system's cache; prefill, decode: tokens a second, of a prompt of `prompt`
    tokens and of an answer to it; decode_full: the same where the context is full; crossings: from one device to
    another, of a token; copied: seconds of a step that weights are on their way; rates: where these figures come from;
    notes: what the user should know; tuned: what it has, or has not, from `hybridkern tune`."""

    model: str
    fingerprint: str
    n_ctx: int
    kv_type: str
    kv_pages: int | None
    packed: bool
    assignment: Assignment
    devices: tuple[DevicePlan, ...]
    rows: tuple[Row, ...]
    load: float
    prompt: int
    prefill: float
    decode: float
    decode_full: float
    crossings: int
    copied: float
    rates: str
    notes: tuple[str, ...] = ()
    tuned: str = ""

    def table(self) -> list[Row]:
        """A row for the embedding, every block and the head."""
        return list(self.rows)

    def device(self, name: str) -> DevicePlan | None:
        """What a device holds, None if it is not part of the plan."""
        return next((d for d in self.devices if d.name == name), None)

    @property
    def divided(self) -> bool:
        """Whether more than one device computes."""
        return len(self.assignment.devices) > 1

    def summary(self) -> list[str]:
        """A few lines for people."""
        a = self.assignment
        blocks = [r for r in self.rows if r.name.startswith("blk.")]
        whole = sum(r.device != "cpu" and "+" not in r.device for r in blocks)
        parts = sum("+" in r.device for r in blocks)
        lines = [
            f"plan: {whole} of {len(blocks)} blocks on a GPU" + (f", parts of {parts} more" if parts else "")
            + f", the head on {a.head}; steps of {a.n_ubatch} tokens, context {self.n_ctx}, cache {self.kv_type}",
            f"predicted: load {self.load:.1f} s, prompt of {self.prompt} tokens {self.prefill:,.0f} t/s, decode "
            f"{self.decode:,.1f} t/s ({self.decode_full:,.1f} at a full context); rates: {self.rates}",
        ]  # fmt: skip
        if a.streamed:
            where = ", ".join(sorted(set(a.streamed.values())))
            ring = f"{a.stream_depth} blocks" if a.stream_depth > 1 else "one block"
            stay = "the last of them stays" if len(a.kept) == 1 else f"the last {len(a.kept)} of them stay"
            lines.append(
                f"steps of {a.stream_from} tokens and more are computed on {where} throughout: the weights of "
                f"{len(a.streamed)} blocks are streamed there, {ring} at a time"
                + (f"; {stay} for the answer" if a.kept else "")
            )
        return [*lines, *([self.tuned] if self.tuned else []), *self.notes]

    # to keep and to replay

    def to_json(self) -> str:
        """A text that `from_json` reads."""
        record = asdict(self)
        record["assignment"]["streamed"] = [[b, d] for b, d in self.assignment.streamed.items()]
        return json.dumps({"hybridkern plan": VERSION, **record}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Raises ArgumentError for a text that is no plan."""
        try:
            record: dict[str, Any] = json.loads(text)
            version = record.pop("hybridkern plan")
            if version != VERSION:
                raise ArgumentError(f"a plan of version {version}; this is version {VERSION}: plan again")
            a = record.pop("assignment")
            a["streamed"] = {int(b): d for b, d in a["streamed"]}
            a["kv"] = tuple(a["kv"])
            _check_types(record, _PLAN_TYPES, "")
            _check_types(a, _ASSIGNMENT_TYPES, "assignment.")
            named = [*a["kv"], *a["tensors"].values(), *a["streamed"].values()]
            if not all(isinstance(device, str) for device in named):
                raise TypeError("a device of its assignment is no name")
            assignment = Assignment(**a)
            devices = tuple(DevicePlan(**d) for d in record.pop("devices"))
            rows = tuple(Row(**r) for r in record.pop("rows"))
            notes = tuple(record.pop("notes"))
            return cls(assignment=assignment, devices=devices, rows=rows, notes=notes, **record)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, ArgumentError):
                raise
            raise ArgumentError(f"this is no plan that hybridkern saved: {error}") from error


_NUMBER = (int, float)
_PLAN_TYPES: dict[str, tuple[type, ...]] = {
    "model": (str,), "fingerprint": (str,), "n_ctx": (int,), "kv_type": (str,), "kv_pages": (int, type(None)),
    "packed": (bool,), "load": _NUMBER, "prompt": (int,), "prefill": _NUMBER, "decode": _NUMBER,
    "decode_full": _NUMBER, "crossings": (int,), "copied": _NUMBER, "rates": (str,),
}  # fmt: skip
_ASSIGNMENT_TYPES: dict[str, tuple[type, ...]] = {
    "embedding": (str,), "head": (str,), "n_ubatch": (int,), "stream_from": (int,), "stream_depth": (int,),
    "stream_kept": (int,),
}  # fmt: skip


def _check_types(record: Mapping[str, Any], types: Mapping[str, tuple[type, ...]], where: str) -> None:
    """Raises TypeError for a value that is of another type; what is missing is noticed elsewhere."""
    for name, allowed in types.items():
        value = record.get(name)
        if name in record and (not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed)):
            raise TypeError(f"its {where}{name} is {value!r}")
