"""NaN and infinite scales are found, and named by tensor, block and byte."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from builder import Tensor, build

from hybridkern.errors import GGUFError
from hybridkern.gguf import BY_NAME, SUPPORTED, GGUFFile, require_finite, validate_quants
from hybridkern.gguf import validate as validate_module

N_BLOCKS = 4
NAN, INF = 0x7E00, 0xFC00
_rng = np.random.default_rng(5)


def dequantize(name: str, data: bytes) -> np.ndarray:
    """gguf-py's reading of whole blocks: (blocks, weights per block)."""
    theirs = gguf.GGMLQuantizationType[name]
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(np.frombuffer(data, np.uint8), theirs)
    return values.reshape(-1, BY_NAME[name].block_size)


def finite_blocks(name: str) -> np.ndarray:
    """Random blocks with every 16-bit word below the exponents of NaN and infinity: uint8 (blocks, bytes)."""
    t = BY_NAME[name]
    return _rng.integers(1, 0x3C, (N_BLOCKS, t.block_bytes), dtype=np.uint8)


@pytest.mark.parametrize("name", sorted(t.name for t in SUPPORTED))
def test_each_supported_type(name, write):
    """Set every place of a block to NaN in turn: a finding exactly where gguf-py's dequantisation is not finite."""
    t = BY_NAME[name]
    width = {"F32": 4, "MXFP4": 1}.get(name, 2)
    nan = {"F32": b"\0\0\xc0\x7f", "MXFP4": b"\xff", "BF16": b"\xc0\x7f"}.get(name, NAN.to_bytes(2, "little"))
    clean = finite_blocks(name)
    dims = (t.block_size * N_BLOCKS,)
    found_at = []
    for place in range(0, t.block_bytes - width + 1, width):
        blocks = clean.copy()
        blocks[2, place : place + width] = np.frombuffer(nan, np.uint8)
        built = build((), [Tensor("w", t.id, dims, blocks.tobytes())])
        if name == "MXFP4":  # gguf-py reads e = 255 as 2^127: the specification of e8m0 says NaN
            bad = [2] if place == 0 else []
        else:
            bad = np.flatnonzero(~np.isfinite(dequantize(name, blocks.tobytes())).all(axis=1)).tolist()
        with GGUFFile.open(write(built)) as file:
            findings = validate_quants(file)
            assert [f.block for f in findings] == bad, (place, findings)
            for f in findings:
                assert (f.tensor, f.type, f.count) == ("w", t, 1)
                assert f.offset == built.marks["data:w"] + 2 * t.block_bytes + place
                found_at.append(place)
                with pytest.raises(GGUFError, match=rf"m\.gguf: tensor 'w' \({name}\), block 2, byte {f.offset}:"):
                    require_finite(file)
    assert found_at == [f.offset for f in validate_module.FIELDS[name]]


def test_first_place_and_count_over_chunks(write, monkeypatch):
    monkeypatch.setattr(validate_module, "_CHUNK", 34 * 10)
    blocks = np.zeros((100, 34), np.uint8)
    for i in (37, 38, 99):
        blocks[i, :2] = np.frombuffer(INF.to_bytes(2, "little"), np.uint8)
    q = Tensor("q", 8, (320, 10), blocks.tobytes())
    ok = Tensor("ok", 0, (2,), np.float32([3e38, -1e-45]).tobytes())
    unsupported = Tensor("i", 28, (1,), np.float64([np.nan]).tobytes())
    built = build((), [ok, unsupported, q])
    for mmap in (True, False):
        with GGUFFile.open(write(built), mmap=mmap) as file:
            (finding,) = validate_quants(file)
            assert (finding.tensor, finding.field, finding.block, finding.count) == ("q", "d", 37, 3)
            assert finding.offset == built.marks["data:q"] + 37 * 34
            assert "3 such blocks" in str(finding)


def test_finite_file_passes(sample, write):
    with GGUFFile.open(write(sample)) as file:
        assert validate_quants(file) == []
        require_finite(file)
