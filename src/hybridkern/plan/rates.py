"""Measured rates: what the cost model multiplies with. Built-in ones stand in until a machine is calibrated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hybridkern.errors import ArgumentError


@dataclass(frozen=True)
class SetRates:
    """One kernel set on one device.

    read: bytes of weights a second with one column, by format, "" being any other; fast: the same where all that a
    token reads, `fast_bytes` at most, stays in a cache between tokens; macs: multiply-accumulates a second with many
    columns. op, op_many: seconds of a product whatever its size, with few columns and with many; attend: of an
    attention and what surrounds it; cache: bytes of the KV cache a second that attention reads for a token;
    attend_macs: its multiply-accumulates a second with many tokens; rows: bytes of activations a second between
    products; step: seconds of a step whatever it does; load: bytes of weights a second that are packed, or uploaded
    and converted.
    """

    read: Mapping[str, float]
    macs: Mapping[str, float]
    op: float
    attend: float
    cache: float
    attend_macs: float
    rows: float
    step: float
    load: float
    op_many: float
    fast: Mapping[str, float] = field(default_factory=dict)
    fast_bytes: int = 0

    def read_of(self, type_name: str, total: float = 0.0) -> float:
        """Bytes a second with one column, where a token reads `total` bytes in all."""
        slow = self.read.get(type_name, self.read[""])
        if not self.fast or total >= 2 * self.fast_bytes:
            return slow
        fast = self.fast.get(type_name, self.fast[""])
        hits = min(1.0, 2 - total / self.fast_bytes)
        return 1 / (hits / fast + (1 - hits) / slow)

    def macs_of(self, type_name: str) -> float:
        """Multiply-accumulates a second with many columns."""
        return self.macs.get(type_name, self.macs[""])


@dataclass(frozen=True)
class LinkRates:
    """Between main memory and a GPU: bytes a second to it and from it, seconds until a token's activations are across,
    and the same of a copy by the copy engine."""

    up: float
    down: float
    latency: float
    copy: float


@dataclass(frozen=True)
class Rates:
    """Of a machine. origin: where they come from, for people. gpus, links: by device name; "" is any other."""

    cpu: SetRates
    gpus: Mapping[str, SetRates] = field(default_factory=dict)
    links: Mapping[str, LinkRates] = field(default_factory=dict)
    origin: str = ""

    def of(self, device: str) -> SetRates:
        """The rates of a device."""
        return self.cpu if device == "cpu" else self.gpus.get(device) or self.gpus.get("") or DEFAULT_GPU

    def link(self, device: str) -> LinkRates:
        """The link of a GPU."""
        return self.links.get(device) or self.links.get("") or DEFAULT_LINK

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Any) -> Rates:
        """Raises ArgumentError for what `to_json` did not write."""
        try:
            gpus = {name: SetRates(**r) for name, r in record["gpus"].items()}
            links = {name: LinkRates(**r) for name, r in record["links"].items()}
            return cls(SetRates(**record["cpu"]), gpus, links, str(record["origin"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ArgumentError(f"these are no rates of a machine: {error!r}") from error


# One H200 and the 16 cores of its host (bench/results/cuda-h200.md, cpu.md).
DEFAULT_GPU = SetRates(
    read={"": 3.2e12, "Q2_K": 1.7e12, "Q3_K": 2.2e12, "IQ4_NL": 2.6e12, "IQ4_XS": 2.4e12, "MXFP4": 2.4e12},
    macs={"": 350e12, "F16": 85e12, "BF16": 82e12, "F32": 15e12},
    op=2.9e-6, op_many=9e-6, attend=5e-6, cache=4.0e12, attend_macs=110e12, rows=2e12, step=25e-6, load=19e9,
)  # fmt: skip
DEFAULT_LINK = LinkRates(up=52e9, down=52e9, latency=10e-6, copy=15e-6)
DEFAULT_CPU = SetRates(
    read={"": 95e9}, macs={"": 1.35e12, "F32": 0.4e12, "F16": 0.6e12, "BF16": 0.4e12},
    op=4e-6, op_many=6e-6, attend=6e-6, cache=60e9, attend_macs=0.3e12, rows=60e9, step=40e-6, load=8e9,
    fast={"": 230e9}, fast_bytes=200 << 20,
)  # fmt: skip
DEFAULT_RATES = Rates(DEFAULT_CPU, {"": DEFAULT_GPU}, {"": DEFAULT_LINK}, "built-in, of another machine")
