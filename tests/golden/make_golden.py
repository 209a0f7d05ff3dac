#!/usr/bin/env python3
"""Write the golden files of this folder with an independent engine, llama.cpp through llama-cpp-python.

    pip install llama-cpp-python gguf    # beside the model packages, see tests/real_models.py
    python tests/golden/make_golden.py

llama.cpp quantises activations before it multiplies, so that its logits carry noise of their own. The reference is
therefore its run on the same model **dequantised to F32**, with an F32 KV cache and without flash attention. The run on
the file as it is stands beside it as a yardstick: how far a good engine is from the reference. README.md tells what the
files hold.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src" / "hybridkern" / "measure" / "worker")]

from llama import LlamaCpp  # noqa: E402
from scoring import log_softmax_at  # noqa: E402

import real_models  # noqa: E402

POSITIONS = 640  # past Gemma's sliding window of 512
TOP = 32
GREEDY_STEPS = 48
GREEDY_TOP = 8
LONG = 1000  # more ids than this are kept as a digest

TEXTS = {
    "empty": "",
    "space": " ",
    "three spaces": "   ",
    "tabs": "\t\t\t\t\t\tword",
    "sentence": "The quick brown fox didn't jump over 1,234 lazy dogs.",
    "emoji": "this is 🦙.cpp",
    "devanagari": "नमस्ते दुनिया, क्षत्रिय",
    "spm control": "a<s> b",
    "spm control 2": "<pad>text<eos>",
    "chat": "<start_of_turn>user\nHi<end_of_turn>\n<|im_start|>user\nHi<|im_end|>\n",
    "whitespace": "  two  leading\n\n\nthree newlines \r\n trailing  ",
    "mixed": "naïve café № ½ İstanbul 漢字かな交じり文 한국어 עברית e\u0301 \u200d👩‍👩‍👧",
    "text.txt": (HERE / "text.txt").read_text(),
    "131072 letters": "a" * 131072,
    "30000 cjk": "漢" * 30000,
    "30000 stops": "." * 30000,
}

PROMPTS = {
    "gemma3-270m": [
        "The capital of France is",
        "Once upon a time, in a small village by the sea,",
        "def fibonacci(n):\n",
        "Water boils at 100 degrees",
        "List of the planets of the solar system:\n1. Mercury\n2.",
    ],
    "smollm2-135m": [
        "The capital of France is",
        "Once upon a time, in a small village by the sea,",
        "def fibonacci(n):\n",
        "<|im_start|>user\nWhat is the largest planet?<|im_end|>\n<|im_start|>assistant\n",
        "List of the planets of the solar system:\n1. Mercury\n2.",
    ],
}


def dequantised_copy(source: Path, target: Path) -> None:
    """Write `source` with every tensor as F32."""
    reader = GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(target, arch)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), kind, element)
    writer.add_uint32("general.file_type", 0)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        shape = [int(n) for n in reversed(tensor.shape)]
        values = np.ascontiguousarray(values, np.float32).reshape(shape)
        writer.add_tensor(tensor.name, values, raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def ids_entry(ids: list[int]) -> Any:
    """The ids themselves, or for a long list its length, its ends and the SHA-256 of the little-endian int32 array."""
    if len(ids) <= LONG:
        return ids
    digest = hashlib.sha256(np.array(ids, "<i4").tobytes()).hexdigest()
    return {"n": len(ids), "first": ids[:4], "last": ids[-4:], "sha256": digest}


def token_file(engine: LlamaCpp) -> dict[str, Any]:
    api, vocab = engine.api, engine.vocab
    flags = {
        "n_vocab": engine.n_vocab,
        "bos_id": api.llama_vocab_bos(vocab),
        "eos_id": api.llama_vocab_eos(vocab),
        "add_bos": bool(api.llama_vocab_get_add_bos(vocab)),
        "add_eos": bool(api.llama_vocab_get_add_eos(vocab)),
    }
    texts = []
    for name, text in TEXTS.items():
        entry: dict[str, Any] = {"name": name}
        if len(text) <= 200:
            entry["text"] = text
        for special in (False, True):
            ids = engine.tokenize(text, special=special)
            with_bos = engine.tokenize(text, special=special, bos=True)
            # The ids with BOS are the ids without, behind the BOS: nothing else needs to be kept.
            assert with_bos == [flags["bos_id"]] * flags["add_bos"] + ids, name
            entry["special" if special else "plain"] = ids_entry(ids)
        texts.append(entry)
    return flags | {"texts": texts}


def top_of(row: np.ndarray, n: int) -> list[int]:
    """The ids of the n largest logits, largest first; equal logits in the order of their ids."""
    return np.argsort(-row, kind="stable")[:n].tolist()


def log_sum_exp(rows: np.ndarray) -> np.ndarray:
    out = np.empty(len(rows))
    for i, row in enumerate(rows):
        x = row.astype(np.float64)
        out[i] = x.max() + np.log(np.exp(x - x.max()).sum())
    return out


def greedy(engine: LlamaCpp, prompt: str) -> dict[str, Any]:
    """Continue `prompt` by the most likely token at each step; steps go one token at a time, as in decode."""
    ids = engine.tokenize(prompt, special=True, bos=True)
    engine._clear(engine.ctx)
    engine._eval(engine.ctx, ids, 0)
    steps = []
    for i in range(GREEDY_STEPS):
        row = np.ctypeslib.as_array(engine.api.llama_get_logits_ith(engine.ctx, -1), (engine.n_vocab,))
        top = top_of(row, GREEDY_TOP)
        steps.append({"ids": top, "logits": [round(float(row[t]), 4) for t in top]})
        if i + 1 < GREEDY_STEPS:
            engine._eval(engine.ctx, [top[0]], len(ids) + i)
    tokens = [step["ids"][0] for step in steps]
    return {"prompt": prompt, "prompt_ids": ids, "tokens": tokens, "steps": steps}


def divergence(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """KL(reference || other) of each row, in float64."""
    out = np.empty(len(reference))
    for i, (a, b) in enumerate(zip(reference, other, strict=True)):
        p, q = a.astype(np.float64), b.astype(np.float64)
        p -= p.max() + np.log(np.exp(p - p.max()).sum())
        q -= q.max() + np.log(np.exp(q - q.max()).sum())
        out[i] = (np.exp(p) * (p - q)).sum()
    return out


def dump(path: Path, content: dict[str, Any]) -> None:
    """JSON with one entry of a list a line, so that a change shows as a line."""
    head = {key: value for key, value in content.items() if not isinstance(value, list)}
    lists = {key: value for key, value in content.items() if isinstance(value, list)}
    parts = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    for key, value in lists.items():
        rows = ",\n  ".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in value)
        parts.append(f"{json.dumps(key)}: [\n  {rows}\n ]")
    path.write_text("{\n " + ",\n ".join(parts) + "\n}\n")


def make(name: str, path: Path, out: Path, threads: int, scratch: Path) -> None:
    exact_path = scratch / f"{name}-f32.gguf"
    dequantised_copy(path, exact_path)
    exact = LlamaCpp(str(exact_path), threads=threads, n_ctx=1024, flash=False, kv_type="f32")
    origin = {
        "model": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "engine": f"llama-cpp-python {exact.version}",
    }
    dump(out / f"tokens_{name}.json", origin | token_file(exact))

    ids = exact.tokenize((HERE / "text.txt").read_text(), bos=True)[: POSITIONS + 1]
    rows = np.concatenate(list(exact.logits(ids[:-1])))
    own = LlamaCpp(str(path), threads=threads, n_ctx=1024, repack=False)
    own_rows = np.concatenate(list(own.logits(ids[:-1])))

    top = np.array([top_of(row, TOP) for row in rows], np.int32)
    next_logprob = log_softmax_at(rows, ids[1:])
    own_logprob = log_softmax_at(own_rows, ids[1:])
    distance = divergence(rows, own_rows)
    margin = -np.diff(np.sort(-rows, axis=1)[:, :2], axis=1)[:, 0]
    sure = np.abs(margin) > 0.2
    same = rows.argmax(1) == own_rows.argmax(1)
    np.savez_compressed(
        out / f"logits_{name}.npz",
        ids=np.array(ids, np.int32),
        top_ids=top,
        top_logits=np.take_along_axis(rows, top, 1).astype(np.float32),
        log_sum_exp=log_sum_exp(rows),
        next_logprob=next_logprob,
    )
    summary = {
        "perplexity": float(np.exp(-next_logprob.mean())),
        "quantised_activations": {
            "perplexity": float(np.exp(-own_logprob.mean())),
            "mean_kl": float(distance.mean()),
            "max_kl": float(distance.max()),
            "max_abs_logit": float(np.abs(rows - own_rows).max()),
            "same_top_1": f"{int(same.sum())} of {len(same)}",
            "same_top_1_where_margin_above_0.2": f"{int((same & sure).sum())} of {int(sure.sum())}",
        },
    }
    del rows, own_rows
    continuations = [greedy(exact, prompt) for prompt in PROMPTS[name]]
    dump(out / f"greedy_{name}.json", origin | summary | {"continuations": continuations})
    print(name, json.dumps(summary, indent=1))
    exact_path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the files (default: this one)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=sorted(PROMPTS), help="make one model's files")
    args = parser.parse_args()
    models = {"gemma3-270m": real_models.gemma3_270m, "smollm2-135m": real_models.smollm2_135m}
    with tempfile.TemporaryDirectory() as scratch:
        for name, find in models.items():
            if args.only not in (None, name):
                continue
            path = find()
            if path is None:
                parser.error(f"{name} is not installed, see tests/real_models.py")
            make(name, path, args.out, args.threads, Path(scratch))


if __name__ == "__main__":
    main()
