"""Exact integers and the documented float steps, from raw GGUF blocks, in NumPy: independent of the C code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
FP4_TWICE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])

# where the fp16 scales lie in a block, and then the fp16 offsets or minima
D_AT = {"q2_k": 80, "q3_k": 108, "q6_k": 208}
M_AT = {"q4_1": 2, "q5_1": 2, "q2_k": 82, "q4_k": 2, "q5_k": 2}


@dataclass
class Blocks:
    """values [rows, blocks, block] unscaled; scale, mins [rows, blocks, subs] ints; d, m [rows, blocks] float32."""

    values: np.ndarray
    scale: np.ndarray
    mins: np.ndarray | None
    d: np.ndarray
    m: np.ndarray | None


def _bits(b: np.ndarray) -> np.ndarray:
    return np.unpackbits(b, axis=-1, bitorder="little").astype(np.int64)


def _halves(b: np.ndarray, at: int) -> np.ndarray:
    return np.ascontiguousarray(b[..., at : at + 2]).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(q: np.ndarray, group: int) -> np.ndarray:
    """Groups of `group` bytes: their low nibbles, then their high nibbles."""
    q = q.reshape(*q.shape[:-1], -1, group)
    return np.concatenate([q & 15, q >> 4], axis=-1).reshape(*q.shape[:-2], -1).astype(np.int64)


def _two_bits(q: np.ndarray) -> np.ndarray:
    """Halves of 32 bytes: field 0 of all, then field 1, 2, 3."""
    q = q.reshape(*q.shape[:-1], -1, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    return (q & 3).reshape(*q.shape[:-3], -1).astype(np.int64)


def _scales_k(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, b, c = (s[..., i : i + 4].astype(np.int64) for i in (0, 4, 8))
    scale = np.concatenate([a & 63, (c & 15) | (a >> 6) << 4], axis=-1)
    mins = np.concatenate([b & 63, (c >> 4) | (b >> 6) << 4], axis=-1)
    return scale, mins


def _scales_q3(s: np.ndarray) -> np.ndarray:
    low = np.concatenate([s[..., :8] & 15, s[..., :8] >> 4], axis=-1).astype(np.int64)
    top = np.concatenate([(s[..., 8:] >> (2 * i)) & 3 for i in range(4)], axis=-1).astype(np.int64)
    return (low | top << 4) - 32


def _codes_and_scales(fmt: str, b: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    if fmt == "q8_0":
        return b[..., 2:].view(np.int8).astype(np.int64), None, None
    if fmt in ("q4_0", "q4_1"):
        v = _nibbles(b[..., -16:], 16)
        return (v - 8 if fmt == "q4_0" else v), None, None
    if fmt in ("q5_0", "q5_1"):
        v = _nibbles(b[..., -16:], 16) | _bits(b[..., -20:-16]) << 4
        return (v - 16 if fmt == "q5_0" else v), None, None
    if fmt in ("iq4_nl", "mxfp4"):
        return (IQ4 if fmt == "iq4_nl" else FP4_TWICE)[_nibbles(b[..., -16:], 16)], None, None
    if fmt == "q2_k":
        return _two_bits(b[..., 16:80]), (b[..., :16] & 15).astype(np.int64), (b[..., :16] >> 4).astype(np.int64)
    if fmt == "q3_k":
        high = ((b[..., None, :32] >> np.arange(8, dtype=np.uint8)[:, None]) & 1).astype(np.int64)
        v = (_two_bits(b[..., 32:96]) | high.reshape(*b.shape[:-1], 256) << 2) - 4
        return v, _scales_q3(b[..., 96:108]), None
    if fmt == "q4_k":
        return _nibbles(b[..., 16:], 32), *_scales_k(b[..., 4:16])
    if fmt == "q5_k":
        high = ((b[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1).astype(np.int64)
        return _nibbles(b[..., 48:], 32) | high.reshape(*b.shape[:-1], 256) << 4, *_scales_k(b[..., 4:16])
    if fmt == "q6_k":
        v = (_nibbles(b[..., :128], 64) | _two_bits(b[..., 128:192]) << 4) - 32
        return v, b[..., 192:208].view(np.int8).astype(np.int64), None
    assert fmt == "iq4_xs"
    low = np.stack([b[..., 4:8] & 15, b[..., 4:8] >> 4], axis=-1).reshape(*b.shape[:-1], 8).astype(np.int64)
    h = np.ascontiguousarray(b[..., 2:4]).view(np.uint16).astype(np.int64)
    top = (h >> (2 * np.arange(8))) & 3
    return IQ4[_nibbles(b[..., 8:], 16)], (low | top << 4) - 32, None


def decode(fmt: str, raw: np.ndarray, block_bytes: int) -> Blocks:
    b = np.ascontiguousarray(raw.reshape(raw.shape[0], -1, block_bytes))
    values, scale, mins = _codes_and_scales(fmt, b)
    if fmt == "mxfp4":
        d = np.ldexp(np.float32(1), b[..., 0].astype(np.int32) - 128).astype(np.float32)
    else:
        d = _halves(b, D_AT.get(fmt, 0))
    m = _halves(b, M_AT[fmt]) if fmt in M_AT else None
    if scale is None:
        scale = np.ones((*d.shape, 1), np.int64)
    return Blocks(values, scale, mins, d, m)


def integer_sums(w: Blocks, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """isum [n, rows, blocks, block / 32] and asum [n, blocks, subs], exact."""
    rows, blocks, block = w.values.shape
    subs = w.scale.shape[-1]
    a = codes.astype(np.int64).reshape(len(codes), blocks, subs, block // subs)
    v = w.values.reshape(rows, blocks, subs, block // subs) * w.scale[..., None]
    v32, a32 = v.reshape(rows, blocks, -1, 32), a.reshape(len(codes), blocks, -1, 32)
    isum = np.einsum("rbik,nbik->nrbi", v32.astype(np.float64), a32.astype(np.float64)).astype(np.int64)
    return isum, a.sum(axis=-1)


def _fma(f: np.ndarray, x: np.ndarray, c: np.ndarray) -> np.ndarray:
    """float32 fma. The product is exact in 64 bits; where the sum is not and looks like a tie, the lost part
    decides."""
    p, c80 = f.astype(np.longdouble) * x.astype(np.longdouble), c.astype(np.longdouble)
    s = p + c80
    t = s - p
    lost = (p - (s - t)) + (c80 - t)
    out = s.astype(np.float32)
    tie = np.isfinite(out) & (lost != 0) & (2 * abs(s - out.astype(np.longdouble)) == np.spacing(abs(out)))
    return np.where(tie, np.nextafter(s, np.sign(lost) * np.longdouble(np.inf)).astype(np.float32), out)


def product(w: Blocks, codes: np.ndarray, da: np.ndarray) -> np.ndarray:
    """[n, rows] float32: the steps of hk_packed.h in their order."""
    isum, asum = integer_sums(w, codes)
    assert (abs(isum) < 1 << 24).all()  # exact in float32
    isum, asum = isum.astype(np.float32), asum.astype(np.float32)
    per = isum.shape[3]
    c = np.zeros(isum.shape[:2], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for b in range(isum.shape[2]):
            s = da[:, b * per : (b + 1) * per, None].astype(np.float32)  # [n, block / 32, 1]
            sums = s[:, np.arange(asum.shape[2]) * per // asum.shape[2], 0] * asum[:, b]  # [n, subs]
            d, m = (None if x is None else np.broadcast_to(x[None, :, b], c.shape) for x in (w.d, w.m))
            if per == 1:
                c = _fma(d * s[:, 0], isum[..., b, 0], c)
                c = c if m is None else _fma(m, np.broadcast_to(sums, c.shape), c)
                continue
            f, low = np.zeros_like(c), np.zeros_like(c)
            for i in range(per):
                f = _fma(np.broadcast_to(s[:, i], c.shape), isum[..., b, i], f)
            c = _fma(d, f, c)
            if w.mins is not None:
                for j in range(sums.shape[1]):
                    minima = np.broadcast_to(w.mins[None, :, b, j].astype(np.float32), c.shape)
                    low = _fma(minima, np.broadcast_to(sums[:, j, None], c.shape), low)
                c = _fma(-m, low, c)
    return c


def product64(w: Blocks, codes: np.ndarray, da: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[n, rows] float64, and the sum of the magnitudes of its terms."""
    isum, asum = integer_sums(w, codes)
    a = da.astype(np.float64).reshape(len(da), isum.shape[2], -1)
    terms = (isum * w.d.astype(np.float64)[..., None] * a[:, None]).sum(axis=3)
    size = (abs(isum) * abs(w.d.astype(np.float64))[..., None] * a[:, None]).sum(axis=3)
    if w.m is not None:
        sums = a[..., np.arange(asum.shape[2]) * a.shape[2] // asum.shape[2]] * asum
        mins = w.mins if w.mins is not None else -np.ones_like(w.scale)
        terms = terms - np.einsum("rbs,nbs->nrb", mins, sums) * w.m
        size = size + np.einsum("rbs,nbs->nrb", abs(mins), abs(sums)) * abs(w.m)
    return terms.sum(axis=2), size.sum(axis=2)


def random_raw(
    fmt: str, rng: np.random.Generator, rows: int, blocks: int, block_bytes: int, unit: bool = False
) -> np.ndarray:
    """Random codes and scales; d and m of ordinary size, or exactly 1."""
    raw = rng.integers(0, 256, (rows, blocks, block_bytes), dtype=np.uint8)
    if fmt == "mxfp4":
        raw[..., 0] = 128 if unit else rng.integers(120, 132, (rows, blocks))
        return raw.reshape(rows, -1)
    for at in [D_AT.get(fmt, 0)] + ([M_AT[fmt]] if fmt in M_AT else []):
        h = np.ones((rows, blocks)) if unit else rng.standard_normal((rows, blocks)) * 0.01
        raw[..., at : at + 2] = h.astype(np.float16)[..., None].view(np.uint8)
    return raw.reshape(rows, -1)
