"""What a step takes: bytes and multiply-accumulates over measured rates, a price for every product, and for every
crossing from one device to another."""

from __future__ import annotations

from dataclasses import dataclass, field

from .assignment import CPU, Assignment
from .inventory import Block, Inventory, Matrix
from .rates import Rates

_MAPPED = 64 << 10  # bytes that cross without the copy engine, at most
FEW = 8  # columns with which products are bound by the bytes of their weights
STREAMED = 0.96  # of the bus, what streamed weights reach of it
# Where the CPU attends in a streamed block, what it sends back waits behind weights on their way, and all that touches
# main memory slows down: nothing overlaps, and both together take longer.
DISTURBED = 1.3
# Prices of a product that an attention of the CPU costs besides itself where its input comes from a GPU: threads meet
# to take it over, and again to send what they made.
HANDED_OVER = 5
_TOKEN, _SIZELESS = 16 << 10, 0.6  # bytes of a token's activations; what of the time to send them is not due to size
START, GPU_START = 0.4, 0.4  # seconds of a load besides weights: vocabulary and plan; a GPU's kernels and graphs
LOCKING = 0.05 / (1 << 30)  # seconds a byte until a GPU may read memory by itself


@dataclass
class StepTime:
    """Seconds of a step. blocks: of each block, with crossings and the wait for streamed weights; devices: what each
    computes; links: crossings; copied: the copies of streamed weights, most of which run beside computing."""

    blocks: list[float] = field(default_factory=list)
    devices: dict[str, float] = field(default_factory=dict)
    links: float = 0.0
    crossings: int = 0
    rest: float = 0.0
    copied: float = 0.0
    waited: float = 0.0

    @property
    def seconds(self) -> float:
        """All together."""
        return sum(self.blocks) + self.rest


class CostModel:
    """Of one model on one machine."""

    def __init__(self, inventory: Inventory, rates: Rates, kv_type: str) -> None:
        self.inventory, self.rates, self.kv_type = inventory, rates, kv_type

    def product(self, device: str, matrices: list[Matrix], n: int, total: float) -> float:
        """Products of n columns that share their input, and what lies between them and the next. total: bytes of
        weights that a step reads there."""
        r = self.rates.of(device)
        read = sum(m.file_bytes / r.read_of(m.weight.type, total) for m in matrices)
        macs = sum(n * m.macs / r.macs_of(m.weight.type) for m in matrices)
        if n <= FEW:
            return r.op + max(read, macs)
        moved = n * (2 * matrices[0].weight.cols + 2 * sum(m.weight.rows for m in matrices)) * 4
        return r.op_many + max(read, macs) + moved / r.rows

    def read_by_device(self, a: Assignment) -> dict[str, int]:
        """Bytes of weights that a token reads, by device."""
        totals = {a.head: self.inventory.head.file_bytes}
        for m in self.inventory.matrices():
            d = a.tensors[m.name]
            totals[d] = totals.get(d, 0) + m.file_bytes
        return totals

    def attention(self, device: str, b: Block, n: int, depth: int) -> float:
        """Of n tokens behind `depth` others, with what surrounds it."""
        r = self.rates.of(device)
        seen = depth + (n + 1) / 2
        if b.window:
            seen = min(seen, b.window)
        read = b.cache_bytes(depth + n, self.kv_type) / r.cache
        macs = n * seen * b.n_head * (b.dim_k + b.dim_v) / r.attend_macs if n > 1 else 0.0
        return r.attend + max(read, macs)

    def crossing(self, a: str, b: str, n: int, width: int) -> float:
        """Float32 [n][width] from one device to another; nothing within one. Between GPUs through main memory."""
        if a == b:
            return 0.0
        nbytes, seconds = 4 * n * width, 0.0
        for gpu, rate in ((a, self.rates.link(a).down), (b, self.rates.link(b).up)):
            if gpu != CPU:
                link = self.rates.link(gpu)
                size = _SIZELESS + (1 - _SIZELESS) * nbytes / _TOKEN
                seconds += link.latency * size if nbytes <= _MAPPED else nbytes / rate + link.copy
        if nbytes > _MAPPED and CPU in (a, b):  # through page-locked memory, to which the CPU copies
            seconds += 2 * nbytes / self.rates.cpu.rows
        return seconds

    def step(self, assignment: Assignment, n: int, depth: int = 0, outputs: int = 1) -> StepTime:
        """A step of n tokens behind `depth` others."""
        made = StepTime()
        streams = bool(assignment.streamed) and n >= assignment.stream_from
        if assignment.streamed and not streams:
            assignment = assignment.in_small_steps
        at = assignment.embedding
        walk = _Walk(self, assignment, n, depth, made)
        copies: list[tuple[int, float]] = []
        for b in self.inventory.blocks:
            before = made.links + sum(made.devices.values())
            gpu = assignment.streamed.get(b.index) if streams else None
            if gpu is not None:
                over = [m for m in b.matrices if assignment.tensors[m.name] == CPU]
                copy = sum(m.file_bytes for m in over) / (STREAMED * self.rates.link(gpu).up)
            at = walk.block(b, at, gpu)
            made.blocks.append(made.links + sum(made.devices.values()) - before)
            if gpu is None:
                continue
            if assignment.kv[b.index] != CPU:
                copies.append((b.index, copy))
            else:
                wait = DISTURBED * (made.blocks[-1] + copy) - made.blocks[-1]
                made.blocks[-1] += wait
                made.waited += wait
                made.copied += copy
        self._wait_for_copies(made, copies, assignment.stream_depth)
        before = made.links + sum(made.devices.values())
        walk.cross(at, assignment.head, outputs, self.inventory.n_embd)
        walk.add(
            assignment.head,
            self.product(assignment.head, [self.inventory.head], outputs, walk.totals.get(assignment.head, 0)),
        )
        for device in {assignment.embedding, assignment.head}:
            made.rest += self.rates.of(device).step
        made.rest += made.links + sum(made.devices.values()) - before
        return made

    @staticmethod
    def _wait_for_copies(made: StepTime, copies: list[tuple[int, float]], depth: int) -> None:
        """Copies run one after the other beside everything, at most `depth` blocks ahead; blocks wait for theirs."""
        made.copied += sum(s for _, s in copies)
        now = copied = 0.0
        ends: list[float] = []  # of streamed blocks, whose places become free
        times = dict(copies)
        order = [i for i, _ in copies]
        for i, seconds in enumerate(list(made.blocks)):
            if i in times:
                k = order.index(i)
                free = ends[k - depth] if k >= depth else 0.0
                copied = max(copied, free) + times[i]
                if copied > now:
                    made.waited += copied - now
                    made.blocks[i] += copied - now
                    now = copied
            now += seconds
            if i in times:
                ends.append(now)

    def prompt(self, assignment: Assignment, n: int) -> float:
        """Seconds of a prompt of n tokens."""
        step = assignment.n_ubatch
        sizes = [min(step, n - first) for first in range(0, n, step)]
        seconds = 0.0
        for i, size in enumerate(sizes):
            seconds += self.step(assignment, size, i * step).seconds
        return seconds

    def token(self, assignment: Assignment, depth: int = 0) -> float:
        """Seconds of a token behind `depth` others."""
        return self.step(assignment, 1, depth).seconds

    def load(self, assignment: Assignment, packed: bool) -> float:
        """Seconds until the weights are where they belong, the file being in the system's cache."""
        seconds = START + GPU_START * sum(d != CPU for d in assignment.devices)
        for device, nbytes in self.read_by_device(assignment).items():
            if device != CPU or packed:
                seconds += nbytes / self.rates.of(device).load
        if assignment.streamed:  # there is a second program then
            there = [m for b in assignment.streamed for m in self.inventory.blocks[b].matrices]
            over = sum(m.file_bytes for m in there if assignment.tensors[m.name] == CPU)
            seconds += LOCKING * over + GPU_START
        return seconds


class _Walk:
    """Follows the activations through one step."""

    def __init__(self, cost: CostModel, assignment: Assignment, n: int, depth: int, made: StepTime) -> None:
        self._cost, self._assignment, self._n, self._depth, self._made = cost, assignment, n, depth, made
        self.totals = cost.read_by_device(assignment)

    def add(self, device: str, seconds: float) -> None:
        self._made.devices[device] = self._made.devices.get(device, 0.0) + seconds

    def cross(self, a: str, b: str, n: int, width: int) -> None:
        if a != b:
            self._made.links += self._cost.crossing(a, b, n, width)
            self._made.crossings += 1

    def _there(self, x: set[str], device: str) -> None:
        """The residual stream comes to a device that does not have it yet."""
        if device not in x:
            self.cross(min(x), device, self._n, self._cost.inventory.n_embd)
            x.add(device)

    def _on(self, m: Matrix, gpu: str | None) -> str:
        device = self._assignment.tensors[m.name]
        return gpu if gpu is not None and device == CPU else device

    def _product(self, device: str, matrices: list[Matrix]) -> None:
        self.add(device, self._cost.product(device, matrices, self._n, self.totals.get(device, 0)))

    def _groups(self, matrices: list[Matrix], x: set[str], gpu: str | None) -> dict[str, list[Matrix]]:
        """Products of the normed residual stream, by device."""
        groups: dict[str, list[Matrix]] = {}
        for m in matrices:
            groups.setdefault(self._on(m, gpu), []).append(m)
        for device, group in groups.items():
            self._there(x, device)
            self._product(device, group)
        return groups

    def block(self, b: Block, at: str, gpu: str | None) -> str:
        """Through one block; where the residual stream is behind it. gpu: where the weights of main memory go."""
        attention, ffn, n = b.of("attention"), b.of("ffn"), self._n
        kv, out, down = self._assignment.kv[b.index], self._on(attention[-1], gpu), self._on(ffn[-1], gpu)
        x = {at}
        for device, group in self._groups(attention[:-1], x, gpu).items():
            self.cross(device, kv, n, sum(m.weight.rows for m in group))
        handed = HANDED_OVER * self._cost.rates.cpu.op if kv == CPU != out else 0.0
        self.add(kv, self._cost.attention(kv, b, n, self._depth) + handed)
        self.cross(kv, out, n, b.n_head * b.dim_v)
        self._there(x, out)
        self._product(out, attention[-1:])
        x = {out}
        for device in self._groups(ffn[:-1], x, gpu):
            self.cross(device, down, n, ffn[-1].weight.cols)
        self._there(x, down)
        self._product(down, ffn[-1:])
        return down
