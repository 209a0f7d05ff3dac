"""Measure how well a model predicts a text, and how far it is from another one.

The text is cut into chunks of -c tokens (512); the second half of each is scored. --save-logits keeps a model's
predictions; with --kl-base another one (another quantisation, another placement) is compared with them, over the same
tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridkern.errors import ArgumentError

from .flags import add_context, add_model, load_arguments
from .generate import open_model
from .terminal import note, write
from .values import given_text, integer, words

if TYPE_CHECKING:
    from hybridkern.runtime.perplexity import Score

CHUNK = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add_model(parser)
    group = parser.add_argument_group("text")
    group.add_argument("-f", "--file", metavar="FILE", help="the text; - is standard input")
    group.add_argument("-p", "--prompt", type=words, metavar="TEXT", help="the text itself")
    group.add_argument("--chunks", type=integer(-1), default=-1, metavar="N", help="chunks at most (-1: all)")
    group.add_argument("--save-logits", "--save-all-logits", metavar="FILE", help="keep the predictions in a file")
    group.add_argument("--kl-base", metavar="FILE", help="compare with the predictions in such a file, over its text")
    group.add_argument("--json", action="store_true", help="one JSON object instead of text")
    add_context(parser)


def run(args: argparse.Namespace) -> int:
    """Load, cut, measure, show."""
    from hybridkern.gguf.targets import check_target
    from hybridkern.runtime.logit_base import LogitBase, LogitWriter
    from hybridkern.runtime.perplexity import cut, measure

    base = LogitBase.open(args.kl_base) if args.kl_base else None
    if base is not None and args.ctx_size not in (None, base.n_ctx):
        raise ArgumentError(f"-c {args.ctx_size}: {base.path} was made with chunks of {base.n_ctx} tokens")
    if args.prompt is not None and args.file is not None:
        raise ArgumentError("-p and -f: give one of them")
    text = given_text(args)
    if (text is None) == (base is None):
        raise ArgumentError("give the text with -f or -p, or --kl-base, whose text is used again")
    most = None if args.chunks == -1 else args.chunks
    options = load_arguments(args)
    if args.chunks == 0:
        raise ArgumentError("--chunks 0: nothing would be measured; -1 takes all")
    if args.ctx_size == 0:
        raise ArgumentError("-c 0: the size of the chunks is needed, from 8 on")
    if args.save_logits:
        check_target(args.save_logits, [name for name in (args.file, args.kl_base) if name])
    options["n_ctx"] = base.n_ctx if base is not None else args.ctx_size or CHUNK
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(open_model(args, options, args.save_logits))
        if args.verbose:
            for line in model.describe().splitlines():
                note(line)
        chunks = base.chunks[:most] if base is not None else cut(model.tokenize(text or ""), options["n_ctx"], most)
        save = None
        if args.save_logits:
            save = stack.enter_context(LogitWriter(args.save_logits, chunks, model.n_vocab))
        score = measure(model, chunks, base=base, save=save, heard=_Progress(len(chunks)))
    record = summary(score, len(chunks), options["n_ctx"])
    if args.json:
        write(json.dumps({"model": args.model, **record}) + "\n")
    else:
        _show(record)
    return 0


class _Progress:
    """The perplexity so far, on a terminal."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, done: int, score: Score) -> None:
        if sys.stderr.isatty():
            end = "\n" if done == self.n else ""
            sys.stderr.write(f"\rhybridkern: chunk {done} of {self.n}: perplexity {score.perplexity[0]:.4f}{end}")
            sys.stderr.flush()


def summary(score: Score, n_chunks: int, n_ctx: int) -> dict[str, Any]:
    """The numbers of a measurement, with the keys of the JSON output."""
    from hybridkern.runtime.perplexity import mean_and_error

    ppl, error = score.perplexity
    made: dict[str, Any] = {
        "chunks": n_chunks,
        "n_ctx": n_ctx,
        "scored": len(score.nll),
        "perplexity": ppl,
        "error": error,
    }
    if score.kl:
        kl = np.asarray(score.kl)
        ratio = np.asarray(score.nll) - np.asarray(score.base_nll)
        same, same_error = mean_and_error([float(s) for s in score.same])
        kl_mean, kl_error = mean_and_error(score.kl)
        made["base"] = {
            "perplexity": float(np.exp(np.mean(score.base_nll))),
            "log_ratio": float(ratio.mean()),
            "log_ratio_error": mean_and_error(ratio.tolist())[1],
            "kl": kl_mean,
            "kl_error": kl_error,
            "kl_median": float(np.median(kl)),
            "kl_99": float(np.quantile(kl, 0.99)),
            "kl_max": float(kl.max()),
            "same_top": same,
            "same_top_error": same_error,
            "rms_dp": float(np.sqrt(np.mean(np.square(score.gain)))),
        }
    return made


def _show(r: dict[str, Any]) -> None:
    write(f"perplexity {r['perplexity']:.4f} +/- {r['error']:.4f}")
    write(f"  ({r['chunks']} chunks of {r['n_ctx']} tokens, {r['scored']} scored)\n")
    if "base" in r:
        b = r["base"]
        write(
            f"the base's {b['perplexity']:.4f}, log of the ratio {b['log_ratio']:+.5f} +/- {b['log_ratio_error']:.5f}\n"
        )
        write(f"KL divergence {b['kl']:.6f} +/- {b['kl_error']:.6f}, median {b['kl_median']:.6f}, ")
        write(f"99 % {b['kl_99']:.6f}, largest {b['kl_max']:.6f}\n")
        write(f"same likeliest token {100 * b['same_top']:.2f} +/- {100 * b['same_top_error']:.2f} %, ")
        write(f"change of the token's probability {100 * b['rms_dp']:.3f} % (root mean square)\n")
