"""Turns fused operations into launches, for steps of at most n tokens and m outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hybridkern.errors import KernelError
from hybridkern.kernels.interface import Buffer, Op, Weight

from . import launches, tiles
from .fusion import Form, Fused, form_of, is_precise
from .launches import ARGMAX_CHUNKS, Launch, Struct
from .layout import LAYOUTS
from .placement import DeviceCache, Placement

_LAYOUTS = {"norm": 0, "neox": 1}


class DeviceLimits(Protocol):
    """What launches must know of a device: multiprocessors, the shared memory that a block may have, compute
    capability, and whether there are kernels for its warpgroups."""

    processors: int
    block_memory: int
    capability: tuple[int, int]
    wgmma: bool


class LaunchBuilder:
    """Launches over the memory of a placement. step: the slot's struct."""

    def __init__(
        self,
        placement: Placement,
        cache: DeviceCache,
        step: Struct,
        n: int,
        m: int,
        device: DeviceLimits,
        max_tokens: int,
    ) -> None:
        self._place, self._cache, self._step = placement, cache, step
        self._n, self._m, self._max_tokens = n, m, max_tokens
        self._processors, self._block_memory = device.processors, device.block_memory
        self._capability = device.capability
        self._wgmma = device.wgmma
        self.made: list[Launch] = []
        self._reads: list[tuple[Weight, ...]] = []  # matrices of products, by launch

    def build(self, fused: Sequence[Fused]) -> list[Launch]:
        """In order."""
        for f in fused:
            self._reads += [()] * (len(self.made) - len(self._reads))
            getattr(self, f"_add_{f.kind}", self._add_rows)(f)
            self._reads += [tuple(p.args[1] for p in f.products)] * (len(self.made) - len(self._reads))
        return self.made

    def uses(self) -> list[tuple[Launch, Sequence[Weight]]]:
        """Every launch with the matrices that its product reads."""
        rest: list[tuple[Weight, ...]] = [()] * (len(self.made) - len(self._reads))
        return list(zip(self.made, [*self._reads, *rest], strict=True))

    def _count(self, b: Buffer) -> int:
        return self._n if b.rows == "tokens" else self._m

    def _add_embed(self, f: Fused) -> None:
        w, out = f.op.args[0], f.op.out
        if out.width != w.cols:
            raise KernelError(f"{w.name} has rows of {w.cols} values, the buffer holds {out.width}")
        at, stride = self._place.buffer(out)
        table, scale = self._place.address(w), f.op.params["scale"]
        self.made.append(launches.embed(w.type, self._step, self._n, table, w.rows, w.cols, at, stride, scale))

    def _add_angles(self, f: Fused) -> None:
        a = f.op.out
        freq, long, out = self._place.angles(a)
        fields = {"inv_freq": freq, "inv_freq_long": long, "out": out, "mscale": a.mscale, "mscale_long": a.mscale_long}
        self.made.append(launches.angles(self._step, self._n, len(a.inv_freq), **fields))

    # products

    def _part(self, p: Op, out: Buffer | None = None) -> Struct:
        x, w, bias, add = p.args
        if w.cols != x.width or p.out.width != w.rows:
            raise KernelError(
                f"{w.name} is {w.rows} x {w.cols}: {x.name} has {x.width} values, {p.out.name} {p.out.width}"
            )
        at, stride = self._place.buffer(out or p.out)
        add_at, add_stride = self._place.buffer(add) if add is not None else (0, 0)
        return {
            "w": launches.matrix(self._place.address(w)),
            "out": at,
            "bias": self._place.vector(bias, w.rows),
            "add": add_at,
            "rows": w.rows,
            "out_stride": stride,
            "add_stride": add_stride,
        }

    def _add_matmul(self, f: Fused) -> None:
        x, w = f.products[0].args[:2]
        outputs = x.rows == "outputs"
        form = form_of(w.type, self._n)
        out = f.glu.out if f.glu is not None else None
        parts = [self._part(p, out if i == 0 else None) for i, p in enumerate(f.products)]
        half, n = self._place.form(x, "half") if form == "half" else None, self._count(x)
        if half is not None and self._n > launches.FEW:
            tile = self._tile(w, parts, n)
            one = tiles.matmul(w.type, self._step, parts, w.cols, n, half=half, outputs=outputs, tile=tile)
            self.made.append(one)
            return
        if LAYOUTS[w.type].is_float:
            at, stride = self._place.buffer(x)
            for p in parts:
                one = launches.float_product(
                    w.type, self._step, p, w.cols, self._n, x32=at, x_stride=stride, outputs=outputs,
                    processors=self._processors,
                )  # fmt: skip
                self.made.append(one)
            return
        norm = f.norm
        source = norm.args[0] if norm is not None else x
        others = [p.args[1].type for p in f.products if p.args[1].type != w.type]
        one = launches.matvec(
            w.type,
            self._step,
            parts,
            w.cols,
            other=(others[0], len(others)) if others else None,
            x=self._place.buffer(source)[0],
            norm=self._place.vector(norm.args[1], w.cols) if norm is not None else 0,
            normalise=norm is not None,
            eps=norm.params["eps"] if norm is not None else 0.0,
            half=half,
            half_stride=tiles.half_sizes(n, w.cols)[0],
            precise=is_precise(f.products[0]),
            glu=f.glu.params["act"] if f.glu is not None else None,
            outputs=outputs,
            processors=self._processors,
            limit=self._block_memory,
        )
        self.made.append(one)

    def _tile(self, w: Weight, parts: list[Struct], n: int) -> tiles.Tile | None:
        if not self._wgmma:
            return None
        return tiles.choose(w.type, [p["rows"] for p in parts], w.cols, n, self._processors)

    # rows

    def _emission(self, out: Buffer, forms: set[Form]) -> Struct:
        fields: Struct = {}
        if "f32" in forms:
            fields["out"], fields["out_stride"] = self._place.buffer(out)
        if "half" in forms:
            fields["half"], fields["half_scale"] = self._place.form(out, "half")
            fields["half_stride"] = tiles.half_sizes(self._count(out), out.width)[0]
        return fields

    def _add_form(self, f: Fused) -> None:
        assert f.x is not None
        at, stride = self._place.buffer(f.x)
        fields = self._emission(f.x, f.forms) | {"x": at, "x_stride": stride, "rows_are_outputs": f.x.rows == "outputs"}
        self.made.append(launches.rows(self._step, self._count(f.x), f.x.width, **fields))

    def _add_rows(self, f: Fused) -> None:
        op, out = f.op, f.op.out
        inputs = [a for a in op.args if isinstance(a, Buffer)]
        if any(a.width != out.width for a in inputs) or any(a.rows != out.rows for a in inputs if op.kind != "select"):
            raise KernelError(
                f"{op.kind} of {', '.join(f'{a.name} ({a.width})' for a in inputs)} into {out.width} values"
            )
        fields = self._emission(out, f.forms) | {"rows_are_outputs": out.rows == "outputs"}
        fields["x"], fields["x_stride"] = self._place.buffer(op.args[0])
        mode = {"rmsnorm": "copy", "glu": op.params.get("act", "")}.get(op.kind, op.kind)
        if op.kind == "rmsnorm":
            _, weight, add = op.args
            fields |= {"norm": self._place.vector(weight, out.width), "normalise": 1, "eps": op.params["eps"]}
            if add is not None:
                fields["add"], fields["add_stride"] = self._place.buffer(add)
        elif op.kind in ("glu", "add"):
            fields["y"], fields["y_stride"] = self._place.buffer(op.args[1])
        elif op.kind in ("scale", "softcap"):
            fields["number"] = op.params["factor" if op.kind == "scale" else "cap"]
        n = self._count(out)
        aligned = out.width % 4 == 0 and all(b.offset % 4 == 0 for b in [*inputs, out])
        plain = op.kind != "rmsnorm" and f.forms == {"f32"}
        if plain and (not aligned or out.width > 16384):
            self.made.append(launches.elements(self._step, n, out.width, mode, **fields))
        elif aligned:
            self.made.append(launches.rows(self._step, n, out.width, mode, **fields))
        else:
            raise KernelError(f"{op.kind} of {out.name}: the CUDA set needs a multiple of 4 values, not {out.width}")

    # attention

    def _add_heads(self, f: Fused) -> None:
        streams = []
        for s in f.streams:
            if s.x.width % s.head_dim or s.head_dim > 256:
                raise KernelError(f"{s.x.name} ({s.x.width} values) does not hold heads of {s.head_dim}, at most 256")
            at, stride = self._place.buffer(s.x)
            streams.append(
                {
                    "x": at,
                    "norm": self._place.vector(s.norm, s.head_dim),
                    "angles": self._place.angles(s.angles)[2] if s.angles is not None else 0,
                    "stride": stride,
                    "n_heads": s.x.width // s.head_dim,
                    "dim": s.head_dim,
                    "half": len(s.angles.inv_freq) if s.angles is not None else 0,
                    "neox": _LAYOUTS[s.layout],
                    "store": s.store,
                    "eps": s.eps,
                }
            )
        cache = self._cache.struct(f.kv) if f.kv is not None else {}
        self.made.append(launches.heads(self._step, self._n, cache, streams))

    def _add_observe(self, f: Fused) -> None:
        x = f.op.out
        at, stride = self._place.buffer(x)
        sums = self._place.sums(x, f.op.params["sums"])
        fields = {"x": at, "x_stride": stride, "sums": sums, "rows_are_outputs": x.rows == "outputs"}
        self.made.append(launches.observe(self._step, x.width, **fields))

    def _add_attend(self, f: Fused) -> None:
        (q, kv), p, out = f.op.args, f.op.params, f.op.out
        n_head = p["n_head"]
        if n_head % kv.n_kv or q.width != n_head * kv.head_dim_k or out.width != n_head * kv.head_dim_v:
            raise KernelError(f"attention of {n_head} heads over {kv} reads {q.width} and writes {out.width} values")
        splits = launches.decode_splits(self._n, n_head, kv.n_kv, self._processors, self._max_tokens, self._capability)
        fields = dict(zip(("q", "q_stride"), self._place.buffer(q), strict=True))
        fields |= dict(zip(("out", "out_stride"), self._place.buffer(out), strict=True))
        if self._n <= launches.FEW:
            size = self._n * n_head * splits * (kv.head_dim_v + 2) * 4
            fields["partial"] = self._place.shared_scratch("attention", size)
            fields["arrived"] = self._place.shared_scratch("counters", 4 * 65536)
        one = launches.attend(
            self._step, self._n, self._cache.struct(kv), self._cache.kv_type, capability=self._capability,
            splits=splits, n_head=n_head, window=p["window"], scale=p["scale"], softcap=p["softcap"],
            processors=self._processors, **fields,
        )  # fmt: skip
        self.made.append(one)

    def add_topk(self, logits: Buffer, k: int, ids: int, values: int, total: int) -> None:
        """The k likeliest tokens at the end, of every output row."""
        at, stride = self._place.buffer(logits)
        partial = self._place.shared_scratch("topk", self._m * launches.TOPK_PARTIAL)
        arrived = self._place.shared_scratch("counters", 4 * 65536)
        fields = {"partial": partial, "arrived": arrived, "ids": ids, "values": values, "total": total}
        fields |= {"width": logits.width, "logits": at, "stride": stride}
        self.made.append(launches.topk(self._step, self._m, k, **fields))

    def add_argmax(self, logits: Buffer, best: int, value: int, to: Struct | None = None) -> None:
        """The greedy choice at the end. to: what becomes of it, as in hk_handover."""
        at, stride = self._place.buffer(logits)
        partial = self._place.shared_scratch("argmax", self._place.max_outputs * ARGMAX_CHUNKS * 16)
        arrived = self._place.shared_scratch("counters", 4 * 65536)
        fields = {"partial": partial, "arrived": arrived, "best": best, "value": value, "width": logits.width}
        fields |= {"to": to or {}}
        self.made.append(launches.argmax(self._step, self._m, logits=at, stride=stride, **fields))

    def add_crossing(self, receive: bool, parts: Sequence[tuple[Buffer, int]], flag: int, abort: int) -> None:
        """Buffers that are sent or received. parts: with the host addresses that their rows pass through."""
        rows = []
        for b, host in parts:
            at, stride = self._place.buffer(b)
            rows.append({"at": at, "stride": stride, "host": host, "width": b.width, "outputs": b.rows == "outputs"})
        self.made.append(launches.link(self._step, receive, rows, flag, abort))
