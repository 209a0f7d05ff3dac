"""Record which type an independent quantiser gives to each tensor: mixes.json.

    python make_mixes.py > mixes.json      (needs llama-cpp-python and gguf)

Models of two rows per tensor are made for several architectures, and quantised by llama.cpp's `llama_model_quantize` to
every file type. The types of a kind of tensor, in the order of the blocks, are written as runs: "Q6_K*3 Q4_K*2".
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import sys
import tempfile
from importlib.metadata import version

import gguf
import llama_cpp
import numpy as np
from shapes import MODELS, make

FILE_TYPES = {
    "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12,
    "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30,
    "BF16": 32,
}  # fmt: skip


def quantise(source, target, file_type, imatrix):
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = file_type, 1
    keep = []
    if imatrix:
        entries = []
        for t in gguf.GGUFReader(source).tensors:
            values = np.ones(int(t.shape[0]), np.float32)
            keep.append(values)
            entries.append((t.name.encode(), values.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), values.size))
        array = (llama_cpp.llama_model_imatrix_data * (len(entries) + 1))(*entries)
        params.imatrix = array
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)):
        raise SystemExit(f"{source} could not be quantised to {file_type}")


def runs(types):
    return " ".join(f"{t}*{len(list(g))}" for t, g in itertools.groupby(types))


def types_of(path):
    found = {}
    for t in gguf.GGUFReader(path).tensors:
        kind = t.name.split(".", 2)[-1] if t.name.startswith("blk.") else t.name
        block = int(t.name.split(".")[1]) if t.name.startswith("blk.") else 0
        found.setdefault(kind.removesuffix(".weight"), {})[block] = t.tensor_type.name
    return {kind: runs([of[i] for i in sorted(of)]) for kind, of in sorted(found.items()) if "norm" not in kind}


def main():
    made = {}
    log = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with tempfile.TemporaryDirectory() as folder:
        for name, (arch, blocks, heads, kv, d, f, head, kinds) in MODELS.items():
            source, target = f"{folder}/{name}.gguf", f"{folder}/out.gguf"
            make(source, arch, blocks, heads, kv, d, f, head, kinds)
            mixes = {}
            for imatrix in (False, True):
                for label, file_type in FILE_TYPES.items():
                    quantise(source, target, file_type, imatrix)
                    of = types_of(target)
                    if not imatrix or of != mixes[label]:
                        mixes[label + (" imatrix" if imatrix else "")] = of
            made[name] = {
                "arch": arch, "blocks": blocks, "heads": heads, "kv": kv, "d": d, "f": f, "head": head,
                "kinds": kinds, "types": mixes,
            }  # fmt: skip
    os.dup2(log, 2)
    json.dump({"made by": f"make_mixes.py, llama-cpp-python {version('llama-cpp-python')}", "models": made},
              sys.stdout, indent=1)  # fmt: skip


if __name__ == "__main__":
    main()
