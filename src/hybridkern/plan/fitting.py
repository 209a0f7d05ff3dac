"""Finds the assignment that answers soonest, within what the user fixed and what the devices hold.

Tensors are ranked by the bytes of them that a token reads over the bytes that they take: the embedding, of which a
token reads one row, comes last. What reads all of itself, which is everything else of a dense model, is equal in that
respect, so whole blocks come first, from the last one on, then parts of blocks, then single matrices, as long as
there is room: fewer crossings for the same bytes. A second order, attention and caches before all feed-forward
networks, is tried as well, each with and without streaming, with the caches of streamed blocks on the GPU and in main
memory, where those of kept blocks may be on it all the same; the best of them for every number of tokens of a step.
The cost model chooses what makes one number least: the seconds of a prompt of 512 tokens and an answer of 256, and a
tenth of those of a prompt of 2,048.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hybridkern.errors import OutOfMemoryError

from .assignment import CPU, Assignment
from .devices import GRAPH_BYTES, MIB, Gpu
from .inventory import Inventory
from .layer_split import gpu_of_blocks
from .predict import CostModel
from .rules import ANY_GPU, Fixed
from .sizes import Sizer

UBATCHES = (512, 1024, 2048)
PROMPT, ANSWER = 512, 256  # tokens of the request whose time is made short,
LONG_PROMPT, LONG_SHARE = 2048, 0.1  # and a tenth of the time of a prompt of so many
STREAM_DEPTH = 2  # blocks of the ring: one costs a fifth of the speed, a third and a fourth gain nothing
STREAM_SHARES = (1, 2, 4)  # all blocks, half of them, a quarter, where each has its cache on the GPU
TRIED_WIDER = 3  # ways to fill the GPUs that are tried with more tokens in a step
_NEVER = 1 << 30


@dataclass(frozen=True)
class Options:
    """gpus: that may be used; fills: whether fitting places what is free (-ngl auto); streams: whether weights may be
    streamed; ubatches: numbers of tokens to choose from; shares: of the GPUs, in the split by layers."""

    gpus: tuple[Gpu, ...]
    fills: bool
    streams: bool
    ubatches: tuple[int, ...]
    shares: tuple[float, ...] = ()


@dataclass(frozen=True)
class Streams:
    """most: blocks that are streamed, the first of those that can be; cached: which have their caches on the GPU, where
    the last of them are kept."""

    most: int = 0
    cached: Literal["all", "kept", "none"] = "all"

    @property
    def depth(self) -> int:
        """Of the ring: nothing overlaps where the CPU attends."""
        return STREAM_DEPTH if self.cached == "all" else 1


Candidate = tuple[Sequence["Unit"], int, Streams]  # what lies on GPUs, tokens of a step, what is streamed
Way = tuple[Sequence["Unit"], Streams]  # in which order GPUs are filled, what is streamed
Unit = tuple[str, int | None]  # ("block" | "attention" | "ffn" | "head" | "embedding" | name of a tensor, block)


class Fitter:
    """Of one model. host: bytes of main memory, None: unknown."""

    def __init__(self, inventory: Inventory, fixed: Fixed, sizer: Sizer, cost: CostModel, options: Options) -> None:
        self.inventory, self.fixed, self.sizer, self.cost, self.options = inventory, fixed, sizer, cost, options
        self._names = {m.name: m for m in inventory.matrices()}

    def best(self) -> Assignment:
        """Raises OutOfMemoryError where nothing fits what was fixed."""
        found = sorted(self._variants(), key=lambda f: f[0])
        for _, (units, n_ubatch, streams) in found:
            taken = list(units)
            while True:  # what was quickly had of its buffers is as good as always enough
                a = self._assignment(taken, n_ubatch, streams)
                a = self._with_threshold(a) if a.streamed else a
                if self.fits(a, exact=True):
                    return self._with_kept(a)
                if not taken:
                    break
                taken.pop()
        raise self._nothing_fits()

    def holds_all(self) -> bool:
        """Whether the GPUs hold all blocks."""
        a = self._assignment(self._by_block() if self.options.fills else [], min(self.options.ubatches))
        return CPU not in a.tensors.values() and self.fits(a)

    def score(self, a: Assignment) -> float:
        """Seconds of what a plan is to make short, as far as the context allows."""
        context = self.sizer.shape.n_ctx
        prompt, long = (max(1, min(n, context * 3 // 4)) for n in (PROMPT, LONG_PROMPT))
        answer = max(1, min(ANSWER, context - prompt))
        prompts = self.cost.prompt(a, prompt) + LONG_SHARE * self.cost.prompt(a, long)
        return prompts + answer * self.cost.token(a, prompt + answer // 2)

    def fits(self, a: Assignment, exact: bool = False) -> bool:
        """Whether every GPU holds its part."""
        return not any(self.overruns(a, exact).values())

    def overruns(self, a: Assignment, exact: bool = True) -> dict[str, int]:
        """Bytes that are missing, by GPU."""
        out = {}
        for g in self.options.gpus:
            held = self.sizer.gpu(a, g, exact)
            need = sum(held.values()) + GRAPH_BYTES if held else 0
            out[g.name] = max(0, need - g.usable)
        return out

    def _variants(self) -> Iterator[tuple[float, Candidate]]:
        """With the fewest tokens of a step all ways, then the best of them with more; each with its score."""
        ways = list(self._ways())
        for k, n_ubatch in enumerate(self.options.ubatches):
            made: list[tuple[float, Way]] = []
            for way in ways:
                units, streams = self._largest(way[0], n_ubatch, way[1]), way[1]
                a = None if units is None else self._assignment(units, n_ubatch, streams)
                if units is None or a is None or (streams.most and not a.streamed):
                    continue
                made.append((self.score(a), way))
                yield made[-1][0], (units, n_ubatch, streams)
            if k == 0 and made:
                ways = [way for _, way in sorted(made, key=lambda m: m[0])[:TRIED_WIDER]]

    def _ways(self) -> Iterator[Way]:
        """In which order GPUs are filled, and what is streamed."""
        gpus, fills, n = bool(self.options.gpus), self.options.fills, len(self.inventory.blocks)
        for order in (self._by_block(), self._attention_first()) if gpus and fills else ([],):
            yield order, Streams()
        if not gpus or not self.options.streams:
            return
        for share in STREAM_SHARES:
            yield self._from_the_front() if fills else [], Streams(n // share)
        if fills:
            yield self._attention_first(), Streams(n)
        for cached in ("kept", "none"):
            yield self._by_block() if fills else [], Streams(n, cached)

    def _largest(self, order: Sequence[Unit], n_ubatch: int, streams: Streams) -> list[Unit] | None:
        """As much of the order as fits: its longest beginning, then whatever else still finds room."""
        a = self._assignment([], n_ubatch, streams)
        if not self.fits(a):
            return [] if self.fits(a, exact=True) else None
        low, high = 0, len(order)
        while low < high:
            middle = (low + high + 1) // 2
            if self.fits(self._assignment(order[:middle], n_ubatch, streams)):
                low = middle
            else:
                high = middle - 1
        taken = list(order[:low])
        for unit in self._rest(order[low:]):
            if self.fits(self._assignment([*taken, unit], n_ubatch, streams)):
                taken.append(unit)
        return taken

    # orders

    def _by_block(self) -> list[Unit]:
        last_first = [("block", b.index) for b in reversed(self.inventory.blocks)]
        return [("head", None), *last_first, ("embedding", None)]

    def _from_the_front(self) -> list[Unit]:
        """While blocks in front compute, the weights of those behind them come across."""
        return [("head", None), *(("block", b.index) for b in self.inventory.blocks), ("embedding", None)]

    def _attention_first(self) -> list[Unit]:
        indices = [b.index for b in reversed(self.inventory.blocks)]
        return [
            *(("attention", i) for i in indices),
            ("head", None),
            *(("ffn", i) for i in indices),
            ("embedding", None),
        ]

    def _rest(self, left: Sequence[Unit]) -> Iterator[Unit]:
        """Parts of the blocks that found no room whole, the largest first; of blocks alike, three are tried."""
        tries: dict[object, int] = {}
        for kind, block in left:
            if block is None:
                yield kind, block
                continue
            b = self.inventory.blocks[block]
            parts: list[tuple[Unit, int]] = []
            if kind == "block":
                parts = [((role, block), sum(m.file_bytes for m in b.of(role))) for role in ("ffn", "attention")]  # type: ignore[arg-type]
            mine = b.matrices if kind == "block" else b.of(kind)  # type: ignore[arg-type]
            parts += [((m.name, block), m.file_bytes) for m in mine]
            for unit, size in sorted(parts, key=lambda p: -p[1]):
                key = (unit[0].split(".")[-2] if "." in unit[0] else unit[0], size)
                tries[key] = tries.get(key, 0) + 1
                if tries[key] <= 3:
                    yield unit

    # an assignment of these units

    def _assignment(self, units: Sequence[Unit], n_ubatch: int, streams: Streams = Streams()) -> Assignment:
        """With these on GPUs."""
        wanted = self._wanted(units)
        head = self.fixed.head or (ANY_GPU if ("head", None) in units else CPU)
        embedding = self.fixed.embedding or (ANY_GPU if ("embedding", None) in units else CPU)
        kv = []
        for b in self.inventory.blocks:
            follows = wanted[b.of("attention")[-1].name]
            kv.append(self.fixed.kv.get(b.index, follows))
        streamed: dict[int, str] = {}
        for b in self.inventory.blocks if streams.most else ():
            partly = any(wanted[m.name] == CPU for m in b.matrices)
            stays = streams.cached == "all" and self.fixed.kv.get(b.index) == CPU
            if partly and len(streamed) < streams.most and not stays:
                streamed[b.index] = ANY_GPU
        cached = {"all": list(streamed), "kept": list(streamed)[-streams.depth :], "none": []}[streams.cached]
        for block in cached:
            kv[block] = self.fixed.kv.get(block, ANY_GPU)
        gpu_of = gpu_of_blocks(self.inventory, self.options.gpus, self.options.shares, wanted, kv, streamed)
        tensors = {name: gpu_of[self._names[name].block] if d == ANY_GPU else d for name, d in wanted.items()}
        named = [self._device_of_block(i, tensors, kv[i], gpu_of) for i in range(len(kv))]
        last = self.options.gpus[-1].name if self.options.gpus else CPU
        first = next((d for d in named if d != CPU), last)
        stream_on = {b: named[b] for b in streamed}
        stream_on = {
            b: g for b, g in stream_on.items()
            if all(tensors[m.name] in (CPU, g) for m in self.inventory.blocks[b].matrices)
        }  # fmt: skip
        return Assignment(
            tensors,
            tuple(named[i] if k == ANY_GPU else k for i, k in enumerate(kv)),
            first if embedding == ANY_GPU else embedding,
            (named[-1] if named[-1] != CPU else last) if head == ANY_GPU else head,
            n_ubatch,
            stream_on,
            2 if stream_on else 0,
            streams.depth if stream_on else 0,
            streams.depth if stream_on else 0,
        )

    def _wanted(self, units: Sequence[Unit]) -> dict[str, str]:
        chosen = set(units)
        out = {}
        for m in self.inventory.matrices():
            free = {("block", m.block), (m.role, m.block), (m.name, m.block)} & chosen
            out[m.name] = self.fixed.tensors.get(m.name) or (ANY_GPU if free else CPU)
        return out

    def _device_of_block(self, i: int, tensors: dict[str, str], kv: str, gpu_of: dict[int | None, str]) -> str:
        """The GPU that a block has anything on, else the one that the split gives it."""
        if kv not in (CPU, ANY_GPU):
            return kv
        on = {tensors[m.name] for m in self.inventory.blocks[i].matrices} - {CPU}
        if len(on) == 1:
            return on.pop()
        return gpu_of[i]

    # streaming

    def _with_threshold(self, a: Assignment) -> Assignment:
        """With the fewest tokens from which on streaming is sooner than the CPU."""
        never = replace(a, stream_from=_NEVER)
        always = replace(a, stream_from=1)
        low, high = 2, a.n_ubatch + 1
        while low < high:
            middle = (low + high) // 2
            if self.cost.step(always, middle).seconds <= self.cost.step(never, middle).seconds:
                high = middle
            else:
                low = middle + 1
        if low > a.n_ubatch:
            return replace(a, streamed={}, stream_from=0, stream_depth=0, stream_kept=0)
        return replace(a, stream_from=low)

    def _with_kept(self, a: Assignment) -> Assignment:
        """Without kept blocks where crossing to them takes longer than the CPU."""
        without = replace(a, stream_kept=0)
        return without if self.cost.token(without) < self.cost.token(a) else a

    # errors

    def _nothing_fits(self) -> OutOfMemoryError:
        n_ubatch = min(self.options.ubatches)
        missing = self.overruns(self._assignment([], n_ubatch))
        parts = []
        for g in self.options.gpus:
            if missing.get(g.name):
                held = self.sizer.gpu(self._assignment([], n_ubatch), g)
                what = ", ".join(f"{name} {n / MIB:.0f} MiB" for name, n in sorted(held.items(), key=lambda x: -x[1]))
                need = (sum(held.values()) + GRAPH_BYTES) / MIB
                parts.append(f"{g.name} would need {need:.0f} MiB ({what}) and can give {g.usable / MIB:.0f} MiB")
        return OutOfMemoryError(
            f"the model does not fit as it was asked for: {'; '.join(parts)}. Place less there (-ngl, --place, -ot), "
            "shorten the context (-c), lower -ub, or let fitting choose (-ngl auto)"
        )
