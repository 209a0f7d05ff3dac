"""Record the perplexity of the two real models in an independent engine: perplexity.json.

    hybridkern quantize SMOLLM2.gguf smollm2-f16.gguf F16 --allow-requantize      (and the same for Gemma 3)
    python make_perplexity.py SMOLLM2.gguf smollm2-f16.gguf GEMMA3.gguf gemma3-f16.gguf > perplexity.json

Needs llama-cpp-python. As llama.cpp's perplexity tool computes it: chunks of 128 tokens, the first replaced by BOS
where the vocabulary has one in front of texts, the second half scored. Of each model as it is, and of the same weights
in F16: that engine rounds the inputs of quantised products to int8, which moves its own result (Gemma 3: by 1.4 %).
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "src" / "hybridkern" / "measure" / "worker"))
N_CTX = 128


def chunked_nll(engine, text: str, n_ctx: int, most: int | None = None) -> np.ndarray:
    """Negative log-likelihoods of the scored tokens."""
    from scoring import log_softmax_at

    ids = engine.tokenize(text, bos=True)
    with_bos = engine.tokenize("a", bos=True)[:-1]
    n = len(ids) // n_ctx if most is None else min(most, len(ids) // n_ctx)
    nll = []
    for i in range(n):
        chunk = ids[i * n_ctx : (i + 1) * n_ctx]
        if with_bos:
            chunk[0] = with_bos[0]
        rows = np.concatenate(list(engine.logits(chunk)))
        first = n_ctx // 2
        nll.append(-log_softmax_at(rows[first : n_ctx - 1], chunk[first + 1 :]))
    return np.concatenate(nll)


def main() -> None:
    from llama import LlamaCpp

    text = (ROOT / "tests" / "golden" / "text.txt").read_text()
    made = {"made by": f"make_perplexity.py, llama-cpp-python {version('llama-cpp-python')}", "n_ctx": N_CTX}
    names = [f"{model}{form}" for model in ("smollm2-135m", "gemma3-270m") for form in ("", " f16")]
    for name, path in zip(names, sys.argv[1:], strict=True):
        nll = chunked_nll(LlamaCpp(path, n_ctx=N_CTX), text, N_CTX)
        made[name] = {"perplexity": float(np.exp(nll.mean())), "scored": len(nll)}
    json.dump(made, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
