"""What an assignment takes on every device, to the byte: the same operations, lowered by the sets that count.

Buffers are shared by the blocks, so that one block of each kind tells them; matrices, vectors and caches are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hybridkern.kernels.cpu import sizing as cpu_sizing
from hybridkern.kernels.cpu.sizing import cache_page_bytes
from hybridkern.kernels.cuda import sizing as cuda_sizing
from hybridkern.kernels.cuda.layout import device_bytes
from hybridkern.kernels.cuda.ring import AREAS, FILL, RING, STAGING, ring_bytes
from hybridkern.kernels.interface import KVSpec, Op, Recorder
from hybridkern.model import LoadedModel

from .assignment import CPU, Assignment
from .devices import Gpu
from .division import Division, Segment, divide, whole
from .inventory import Inventory
from .recorded import blocks_of, devices_of, padded, signature, vectors_in, weights_in

PAGE = 128


@dataclass(frozen=True)
class Shape:
    """What a model is to be ready for. n_seq: sequences at a time; spare_pages: of a GPU's cache beyond one full
    context; outputs: rows with logits of a step of so many tokens, on a GPU or not."""

    n_ctx: int
    n_batch: int
    kv_type: str
    n_seq: int
    spare_pages: int
    outputs: Callable[[int, bool], int]

    @property
    def max_pages(self) -> int:
        """Of one sequence."""
        return -(-self.n_ctx // PAGE)


@dataclass(frozen=True, eq=False)
class _Held:
    """What of one block, or of what is not one, a GPU runs. vectors: bytes by identity."""

    ops: tuple[Op, ...]
    weights: int
    vectors: dict[int, int]


class Sizer:
    """Of one model and shape."""

    def __init__(self, model: LoadedModel, inventory: Inventory, shape: Shape) -> None:
        self.inventory, self.shape = inventory, shape
        self._specs: Sequence[KVSpec] = model.kv_specs
        recorder = Recorder()
        self.logits = model.record(recorder)
        self.ops: list[Op] = recorder.ops
        self._order = {id(op): i for i, op in enumerate(self.ops)}
        self._of_block: dict[int | None, list[Op]] = {}
        for op, block in zip(self.ops, blocks_of(self.ops, inventory), strict=True):
            self._of_block.setdefault(block, []).append(op)
        self._kinds = {
            tuple(signature(op) for op in ops): b for b, ops in self._of_block.items() if b is not None
        }.values()
        self._device_bytes = {
            id(m.weight): padded(device_bytes(m.weight.type, m.weight.rows, m.weight.cols))
            for m in [inventory.embedding, *inventory.matrices(), inventory.head]
        }
        self._found: tuple[Assignment, str, dict[str, int]] | None = None  # the last
        self._divided: tuple[Assignment, list[Division]] | None = None  # the last
        self._held_known: dict[object, _Held] = {}
        self._buffers_known: dict[object, dict[str, int]] = {}

    def _held(self, a: Assignment, block: int | None, device: str) -> _Held:
        """What a device runs of a block, streamed weights not counted."""
        streamed = block is not None and a.streamed.get(block) == device
        if block is None:
            key: object = (None, a.embedding == device, a.head == device)
        else:
            mine = tuple(a.tensors[m.name] == device for m in self.inventory.blocks[block].matrices)
            key = (block, mine, a.kv[block] == device, streamed)
        if key not in self._held_known:
            self._held_known[key] = self._find_held(a, block, device, streamed)
        return self._held_known[key]

    def _find_held(self, a: Assignment, block: int | None, device: str, streamed: bool) -> _Held:
        ops = self._of_block[block]
        if not streamed:
            ops = [op for op, on in zip(ops, devices_of(ops, a, block), strict=True) if device in on]
        held = {id(w): w for op in ops for w in weights_in(op)}
        if streamed:
            held = {i: w for i, w in held.items() if a.tensors[w.name] == device}
        weights = sum(self._device_bytes[id(w)] for w in held.values())
        return _Held(tuple(ops), weights, vectors_in(ops))

    def _all_held(self, a: Assignment, device: str) -> list[_Held]:
        found = (self._held(a, block, device) for block in self._of_block)
        return [h for h in found if h.ops]

    def gpu(self, a: Assignment, gpu: Gpu, exact: bool = True) -> dict[str, int]:
        """Bytes by purpose on a GPU; nothing for one that holds nothing. exact: False takes the buffers of whole halves
        of blocks, which are more and quickly had."""
        if gpu.name not in a.devices:
            return {}
        held = self._all_held(a, gpu.name)
        specs = [s for s in self._specs if a.kv[s.block] == gpu.name]
        found = dict(self._exactly(a, gpu) if exact else self._about(held, a, gpu))
        if not exact:
            vectors: dict[int, int] = {}
            for h in held:
                vectors |= h.vectors
            found |= {"weights": sum(h.weights for h in held), "vectors": sum(vectors.values())}
        page = sum(s.n_kv * cuda_sizing.head_bytes(self.shape.kv_type, s) for s in specs)
        found["KV cache"] = padded(page) * (self.shape.max_pages + self.shape.spare_pages)
        streamed = [b for b, d in a.streamed.items() if d == gpu.name]
        if streamed:
            blocks = [
                [m.weight for m in self.inventory.blocks[b].matrices if a.tensors[m.name] == CPU] for b in streamed
            ]
            if exact:  # what is streamed was counted as if it lay there
                found |= ring_bytes(blocks, a.stream_depth)
                found["weights"] -= sum(self._device_bytes[id(w)] for b in blocks for w in b)
            else:
                found[RING] = a.stream_depth * max(sum(self._device_bytes[id(w)] for w in b) for b in blocks)
                found[STAGING] = AREAS * FILL
        return {what: n for what, n in found.items() if n}

    def divisions(self, a: Assignment) -> list[Division]:
        """Of the step programs: of small steps, and of those with streamed weights."""
        if self._divided is None or self._divided[0] is not a:
            self._divided = a, self._divide(a)
        return self._divided[1]

    def _divide(self, a: Assignment) -> list[Division]:
        if len(a.devices) == 1:
            return [whole(self.ops, a.head)]
        if not a.streamed:
            return [divide(self.ops, self.logits, a)]
        return [divide(self.ops, self.logits, seen) for seen in (a.in_small_steps, a.in_large_steps)]

    def _exactly(self, a: Assignment, gpu: Gpu) -> dict[str, int]:
        """Of the programs as they are run."""
        if self._found is not None and self._found[0] is a and self._found[1] == gpu.name:
            return self._found[2]
        programs = []
        for k, d in enumerate(self.divisions(a)):
            mine = d.of(gpu.name)
            if not mine:
                continue
            pieces = [(c.ops, c.keep) for c in mine if isinstance(c, Segment)]
            crossing = [b for c in mine if not isinstance(c, Segment) for b in c.transfer.parts]
            programs.append(cuda_sizing.Program(pieces, crossing, len(d.commands) == 1, a.stream_from if k else 1))
        found = self._lowered(programs, a, gpu)
        self._found = a, gpu.name, {what: n for what, n in found.items() if what != "KV cache"}
        return self._found[2]

    def _about(self, held: list[_Held], a: Assignment, gpu: Gpu) -> dict[str, int]:
        """Buffers of at most what these have: of attention and feed-forward network of every kind of block."""
        mine = [op for h in held for op in h.ops]
        there = bool([1 for op in mine if op.kind == "attend"]), bool([1 for op in mine if op.kind == "glu"])
        some = {
            op.args[1].name.split(".")[-2][:4] for op in mine if op.kind == "matmul" and op.args[1].name[:4] == "blk."
        }
        attention, ffn = there[0] or "attn" in some, there[1] or bool(some - {"attn"})
        key = (attention, ffn, a.n_ubatch, gpu.limits, a.head == gpu.name, len(a.devices) == 1)
        if key not in self._buffers_known:
            ops = [op for op in self._of_block[None] if op.kind in ("angles", "embed") or a.head == gpu.name]
            for block in self._kinds:
                one = self._of_block[block]
                end = 1 + max(i for i, op in enumerate(one) if op.kind == "attend")
                end += next(i for i, op in enumerate(one[end:]) if op.kind == "rmsnorm" and op.args[2] is None)
                ops += (one[:end] if attention else []) + (one[end:] if ffn else [])
            ops.sort(key=lambda op: self._order[id(op)])
            program = cuda_sizing.Program([(ops, ())], whole=len(a.devices) == 1)
            known = self._lowered([program], a, gpu, sorted({1, 8, min(32, a.n_ubatch), a.n_ubatch}))
            self._buffers_known[key] = {what: known.get(what, 0) for what in ("buffers", "step")}
        return self._buffers_known[key]

    def _lowered(
        self, programs: list[cuda_sizing.Program], a: Assignment, gpu: Gpu, classes: list[int] | None = None
    ) -> dict[str, int]:
        """Bytes by purpose; caches are summed elsewhere."""
        ops = [op for p in programs for piece, _ in p.pieces for op in piece]
        own = {s.block for op in ops for s in (op.out, *op.args) if isinstance(s, KVSpec)}
        return cuda_sizing.device_memory(
            programs, self.logits if a.head == gpu.name else None, [s for s in self._specs if s.block in own],
            kv_type=self.shape.kv_type, n_pages=1, n_seq=self.shape.n_seq, max_pages=self.shape.max_pages,
            max_rows=a.n_ubatch, max_outputs=self._outputs(a), limits=gpu.limits, classes=classes,
        )  # fmt: skip

    def _outputs(self, a: Assignment) -> int:
        return self.shape.outputs(a.n_ubatch, a.head != CPU)

    def host(self, a: Assignment, packed: bool) -> dict[str, int]:
        """Bytes by purpose in main memory: what is allocated, not the pages of a mapped file."""
        divisions = self.divisions(a)
        segments = [[c.ops for c in d.of(CPU) if isinstance(c, Segment)] for d in divisions]
        specs = [s for s in self._specs if a.kv[s.block] == CPU]
        products = [m for m in self.inventory.matrices() if a.tensors[m.name] == CPU]
        products += [self.inventory.head] if a.head == CPU else []
        distinct = {id(m.weight): m.weight for m in products}
        found = {"weights": sum(cpu_sizing.packed_bytes(w) for w in distinct.values()) if packed else 0}
        found["KV cache"] = cache_page_bytes(specs, self.shape.kv_type) * self.shape.max_pages
        if any(segments):
            found["buffers"] = cpu_sizing.tape_bytes(
                [ops for program in segments for ops in program], self.logits if a.head == CPU else None, self._specs,
                kv_type=self.shape.kv_type, max_pages=self.shape.max_pages, max_rows=a.n_ubatch,
                max_outputs=self._outputs(a),
            )  # fmt: skip
        if len(a.devices) > 1:  # two areas that large transfers take turns in
            found["link"] = 2 * max(d.crossing(a.n_ubatch, self._outputs(a)) for d in divisions)
        return {what: n for what, n in found.items() if n}
