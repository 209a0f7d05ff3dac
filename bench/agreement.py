"""Whether quantised files are the same model in an independent engine, and which of the two is nearer to the file.

    python bench/agreement.py MODEL.gguf --peer-python VENV/bin/python --text some.txt --chunks 2 -t 2
    python bench/agreement.py --source model-f16.gguf --types F16,Q8_0,Q6_K,Q4_K_M,Q2_K --peer-python ... --text ...

MODEL: files as they are; --source: an F16 file, quantised here to each of --types. Every file is also written in F32,
dequantised by gguf-py: the same weights, for which neither engine rounds any input. All four (the file and its F32
form, here and there) score the second halves of the same chunks, and write greedily behind the same prompts. `exact` is
the F32 form in the independent engine, with a cache in F32; KL divergence is from its predictions. Of the tokens that
this engine writes it is counted how many the other chooses too behind the same text, and how many of those where its
margin exceeds 0.2. Prints two Markdown tables, and JSON with --json.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

import hybridkern as hk
from hybridkern.gguf import GGUFFile
from hybridkern.quantize.write import Writer
from hybridkern.runtime.perplexity import cut, log_probabilities, mean_and_error
from quantize import CHUNK, CLEAR, greedy, ours, peer

Logs = npt.NDArray[np.float32]


def dequantised(source: Path, target: Path) -> None:
    """The same model in F32, by gguf-py's dequantisation."""
    with GGUFFile.open(source) as file:
        writer = Writer(target, file.metadata.get_str("general.architecture"))
        writer.carry(file)
        writer.put("general.file_type", 0)
        tensors = gguf.GGUFReader(source).tensors
        for t in tensors:
            shape = tuple(int(n) for n in reversed(t.shape))
            writer.add_tensor_info(t.name, shape, np.dtype(np.float32), 4 * math.prod(shape))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for t in tensors:
            writer.write_tensor_data(np.ascontiguousarray(gguf.dequantize(t.data, t.tensor_type), np.float32))
        writer.close()


def scored_here(path: Path, chunks: list[list[int]], threads: int, exact: bool) -> Logs:
    """Log-probabilities behind the tokens that are scored."""
    with hk.load(path, n_ctx=CHUNK, threads=threads, kv_type="f32" if exact else "f16", n_gpu_layers=0) as model:
        rows = range(CHUNK // 2, CHUNK - 1)
        return np.concatenate([log_probabilities(model.logits(ids, rows=rows)) for ids in chunks])


def scored_there(
    python: str, path: Path, chunks: list[list[int]], threads: int, exact: bool, folder: Path, n_vocab: int
) -> Logs:
    """The same of the independent engine."""
    rows = folder / "rows"
    peer(python, ["score", path, threads, rows, int(exact)], chunks)
    logits = np.fromfile(rows, np.float32).reshape(-1, n_vocab)
    rows.unlink()
    return log_probabilities(logits)


def followed(python: str, path: Path, texts: list[list[int]], lengths: list[int], threads: int) -> dict[str, int]:
    """How often the independent engine chooses what was written."""
    found = peer(python, ["follow", path, threads], texts)
    chosen = [
        (choices[at - 1][0] == ids[at], choices[at - 1][1] > CLEAR)
        for ids, n, choices in zip(texts, lengths, found, strict=True)
        for at in range(n, len(ids))
    ]
    return {
        "tokens": len(chosen),
        "same": sum(same for same, _ in chosen),
        "clear": sum(clear for _, clear in chosen),
        "same_where_clear": sum(same and clear for same, clear in chosen),
    }


def compared(args: argparse.Namespace, path: Path, name: str, chunks: list[list[int]], folder: Path) -> dict[str, Any]:
    """Everything about one file."""
    exact, threads, python = folder / "f32.gguf", args.threads, args.peer_python
    dequantised(path, exact)
    with hk.load(path, n_ctx=CHUNK, threads=threads, n_gpu_layers=0) as model:
        n_vocab = model.n_vocab
    tokens = np.concatenate([ids[CHUNK // 2 + 1 :] for ids in chunks])
    at = np.arange(len(tokens)), tokens
    base = scored_there(python, exact, chunks, threads, True, folder, n_vocab)
    made: dict[str, Any] = {"file": name, "scored": len(tokens), "exact": math.exp(-float(base[at].mean()))}
    for who in ("f32 here", "here", "there"):
        if who == "there":
            logs = scored_there(python, path, chunks, threads, False, folder, n_vocab)
        else:
            logs = scored_here(exact if who == "f32 here" else path, chunks, threads, who == "f32 here")
        ratio, error = mean_and_error((base[at] - logs[at]).astype(np.float64).tolist())
        made[who] = {
            "perplexity": math.exp(-float(logs[at].mean())),
            "ratio": math.exp(ratio),
            "ratio_error": error,
            "kl": float((np.exp(base) * (base - logs)).sum(1, dtype=np.float64).mean()),
            "same_top": float((base.argmax(1) == logs.argmax(1)).mean()),
        }
        del logs
    made["greedy"] = followed(python, path, *greedy(path, threads), threads)
    made["greedy f32"] = followed(python, exact, *greedy(exact, threads), threads)
    exact.unlink()
    return made


def quality_row(r: dict[str, Any]) -> str:
    """A line of the table of predictions."""
    cells = [r["file"], f"{r['exact']:.3f}", f"{100 * (r['f32 here']['ratio'] - 1):+.3f} %"]
    for who in ("here", "there"):
        x = r[who]
        cells.append(f"{x['perplexity']:.3f}: {100 * (x['ratio'] - 1):+.2f} +/- {100 * x['ratio_error']:.2f} %")
    cells += [f"{r[who]['kl']:.5f}" for who in ("f32 here", "here", "there")]
    cells += [f"{100 * r[who]['same_top']:.1f} %" for who in ("here", "there")]
    return f"| {' | '.join(cells)} |"


def greedy_row(r: dict[str, Any]) -> str:
    """A line of the table of greedy texts."""
    cells = [r["file"]]
    for g in (r["greedy f32"], r["greedy"]):
        cells += [f"{g['same']} of {g['tokens']}", f"{g['same_where_clear']} of {g['clear']}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, help="quantised files")
    parser.add_argument("--source", type=Path, help="an F16 file to quantise")
    parser.add_argument("--types", default="F16,Q8_0,Q6_K,Q4_K_M,Q2_K")
    parser.add_argument("--peer-python", required=True, help="a Python that has llama-cpp-python")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--chunks", type=int, default=2)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--folder", default="/dev/shm", help="where files go for a while (/dev/shm)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    first = args.source or (args.models[0] if args.models else parser.error("give files, or --source"))
    with hk.load(first, n_ctx=CHUNK, threads=1, n_gpu_layers=0) as model:
        ids, bos = model.tokenize(args.text.read_text()), model.vocabulary.bos_id
        chunks = [[bos, *c[1:]] if model.vocabulary.add_bos else c for c in cut(ids, CHUNK, args.chunks)]
    records = []
    print("| file | exact | F32 here | here | there | KL, F32 here | here | there | same top, here | there |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(dir=args.folder) as made:
        folder = Path(made)
        for path in args.models:
            records.append(compared(args, path, path.name, chunks, folder))
            print(quality_row(records[-1]), flush=True)
        for name in args.types.split(",") if args.source else ():
            path = folder / "q.gguf"
            ours(args.source, path, name, args.threads)
            records.append(compared(args, path, name, chunks, folder))
            print(quality_row(records[-1]), flush=True)
    print("\n| file | F32: all tokens | clear | as it is: all tokens | clear |\n|---|---|---|---|---|")
    print("\n".join(greedy_row(r) for r in records))
    if args.json:
        args.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
