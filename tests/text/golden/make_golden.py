"""Make the golden files of this folder with an independent engine: the tokenizers of llama.cpp.

Run it by hand in an environment of its own (`pip install xllamacpp gguf`), never in the tests:

    python make_golden.py GEMMA3_270M.gguf SMOLLM2_135M.gguf

It starts the engine's server on the loopback interface and asks its /tokenize. To have more vocabularies than there
are small models, it also writes tiny models with random weights: SmolLM2's vocabulary under other pre-tokenizer
names, Gemma's with a space in front, and handmade SPM vocabularies (which are stored in the golden file too).
"""

from __future__ import annotations

import json
import sys
import tempfile
import urllib.request
from pathlib import Path

import gguf
import numpy as np
import xllamacpp
from texts import TEXTS

HERE = Path(__file__).parent
PRE_NAMES = [
    "llama-bpe", "smollm", "qwen2", "gpt-2", "deepseek-llm", "deepseek-coder", "deepseek-v3", "falcon", "command-r",
    "starcoder", "refact", "mpt", "olmo", "stablelm2", "dbrx", "chatglm-bpe", "exaone", "tekken", "gpt-4o",
    "bailingmoe", "seed-coder", "bloom", "viking", "default", "qwen35",
]  # fmt: skip
TOKENIZER_KEYS = [
    "model", "pre", "tokens", "scores", "token_type", "merges", "bos_token_id", "eos_token_id", "eot_token_id",
    "unknown_token_id", "add_bos_token", "add_eos_token", "add_space_prefix",
]  # fmt: skip


def ask(server: xllamacpp.Server, path: str, body: dict) -> dict:
    request = urllib.request.Request(
        server.listening_address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def token_ids(model: Path) -> list[dict]:
    """Ids of every text, without and with special tokens parsed."""
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx, params.n_parallel, params.warmup, params.cpuparams.n_threads = 64, 1, False, 1
    server = xllamacpp.Server(params)
    out = []
    for text in TEXTS:
        row = {"text": text}
        for name, special in (("plain", False), ("special", True)):
            body = {"content": text, "add_special": True, "parse_special": special}
            row[name] = ask(server, "/tokenize", body)["tokens"]
        out.append(row)
    return out


def tokenizer_metadata(path: Path) -> dict[str, object]:
    fields = gguf.GGUFReader(path).fields
    keys = [f"tokenizer.ggml.{key}" for key in TOKENIZER_KEYS]
    return {key: fields[key].contents() for key in keys if key in fields}


def write_model(path: Path, metadata: dict[str, object]) -> None:
    """A llama of one block and random weights: only its vocabulary matters."""
    width, vocabulary = 32, len(metadata["tokenizer.ggml.tokens"])
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(width)
    writer.add_block_count(1)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif key.endswith("scores"):
            writer.add_array(key, [float(v) for v in value])
        else:
            writer.add_array(key, value)
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (vocabulary, width), "output_norm": (width,), "blk.0.attn_norm": (width,)}
    shapes |= {"blk.0.ffn_norm": (width,)}
    shapes |= {f"blk.0.attn_{n}": (width, width) for n in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{n}": (width, width) for n in ("gate", "up", "down")}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape, dtype=np.float32) * 0.1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def handmade_spm(add_space_prefix: bool) -> dict[str, object]:
    """A vocabulary in Llama 2's layout, with what real ones rarely show: merges that lead to a control token."""
    rows = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    rows += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    words = ["▁t", "he", "▁the", "in", "▁a", "er", "▁b", "re", "s>", "</", "▁<", "ll", "▁▁", "▁▁▁▁"]
    words += ["aa", "aaaa", "tex", "xt", "<pad", "ext", "os>", "te", "12", "23"]
    rows += [(word, -float(i), 1) for i, word in enumerate(words)]
    rows += [("<tool>", 0.0, 4), ("<tool>x", 0.0, 4), ("<pad>", 0.0, 3), ("<eos>", 0.0, 3), ("xtex", 0.0, 4)]
    letters = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789<>/.,!?'-中猫é"
    rows += [(letter, -100.0 - i, 1) for i, letter in enumerate(letters)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [row[0] for row in rows],
        "tokenizer.ggml.scores": [row[1] for row in rows],
        "tokenizer.ggml.token_type": [row[2] for row in rows],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": add_space_prefix,
    }


def save(name: str, value: object) -> None:
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    for start in ('{"text"', '"llama', '"ids"', '"metadata"'):  # lines of a bearable length
        text = text.replace(start, "\n" + start)
    (HERE / name).write_text(text + "\n")


def main() -> None:
    gemma, smollm = Path(sys.argv[1]), Path(sys.argv[2])
    save("gemma3.json", token_ids(gemma))
    save("smollm2.json", token_ids(smollm))
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "tiny.gguf"

        def run(metadata: dict[str, object]) -> list[dict]:
            model.unlink(missing_ok=True)
            write_model(model, metadata)
            return token_ids(model)

        handmade = {}
        for name, prefix in (("prefix", True), ("no_prefix", False)):
            metadata = handmade_spm(prefix)
            handmade[name] = {"metadata": metadata, "ids": run(metadata)}
        save("spm_handmade.json", handmade)
        save("gemma3_space_prefix.json", run(tokenizer_metadata(gemma) | {"tokenizer.ggml.add_space_prefix": True}))
        base = tokenizer_metadata(smollm)
        ids = {}
        for name in PRE_NAMES:
            ids[name] = [row["plain"] for row in run(base | {"tokenizer.ggml.pre": name})]
        save("pretokenizers.json", {"texts": TEXTS, "ids": ids})


if __name__ == "__main__":
    main()
