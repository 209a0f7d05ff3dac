"""What operations read and write, and which devices hold the present value of which columns of which buffer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hybridkern.errors import KernelError
from hybridkern.kernels.interface import Buffer, Op


def reads(op: Op) -> list[Buffer]:
    """What an operation reads of buffers."""
    return [a for a in op.args if isinstance(a, Buffer)]


def writes(op: Op) -> list[Buffer]:
    """What an operation writes of buffers."""
    return [op.out] if isinstance(op.out, Buffer) and op.kind != "observe" else []


def overwrites(written: Sequence[Buffer], b: Buffer) -> bool:
    """Whether one of these takes the place of all of b."""
    return any(w.root is b.root and w.offset <= b.offset and w.offset + w.width >= b.offset + b.width for w in written)


@dataclass(frozen=True)
class Span:
    """Columns [start, end) of a buffer that owns its memory."""

    root: Buffer
    start: int
    end: int


class Validity:
    """Columns by the devices that hold them, in the order in which these came to them."""

    def __init__(self) -> None:
        self._held: dict[Buffer, list[tuple[int, int, tuple[str, ...]]]] = {}

    def write(self, b: Buffer, devices: Sequence[str]) -> None:
        """Only these devices hold what was written."""
        start, end = b.offset, b.offset + b.width
        rest = []
        for s, e, d in self._held.get(b.root, []):
            rest += [(s, min(e, start), d)] if s < start else []
            rest += [(max(s, end), e, d)] if e > end else []
        self._held[b.root] = sorted([*rest, (start, end, tuple(devices))])

    def add(self, b: Buffer, device: str) -> None:
        """This device holds it too."""
        for s, e, d in list(self._parts(b)):
            if device not in d:
                self.write(Buffer(b.name, e - s, b.rows, b.root, s), (*d, device))

    def devices(self, b: Buffer) -> tuple[str, ...]:
        """Those that hold all of it."""
        parts = [d for _, _, d in self._parts(b)]
        return tuple(x for x in parts[0] if all(x in d for d in parts))

    def missing(self, b: Buffer, device: str) -> list[tuple[str, Span]]:
        """(who can send it, columns) of what a device lacks."""
        return [(d[0], Span(b.root, s, e)) for s, e, d in self._parts(b) if device not in d]

    def _parts(self, b: Buffer) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        at, end = b.offset, b.offset + b.width
        for s, e, d in self._held.get(b.root, []):
            if s <= at < e:
                yield at, min(e, end), d
                at = min(e, end)
            if at == end:
                return
        raise KernelError(f"columns {at} to {end} of {b.root.name} are read before anything wrote them")


def merged(spans: Iterable[Span]) -> list[Buffer]:
    """Views of all columns, neighbours in one."""
    found: dict[Buffer, list[tuple[int, int]]] = {}
    for span in spans:
        found.setdefault(span.root, []).append((span.start, span.end))
    made = []
    for root, columns in found.items():
        whole: list[list[int]] = []
        for start, end in sorted(set(columns)):
            if whole and start <= whole[-1][1]:
                whole[-1][1] = max(whole[-1][1], end)
            else:
                whole.append([start, end])
        made += [root if (s, e) == (0, root.width) else root.view(s, e - s) for s, e in whole]
    return made
