"""Run a text through a model and write down how much each column of its matrices matters (for `quantize --imatrix`).

The file is GGUF, as llama.cpp's tools read and write it: the sums of the squares of what each product is given, and how
many tokens they are from. The text should be like what the model is for; some hundred chunks of -c tokens are usual.
"""

from __future__ import annotations

import argparse
import sys

from hybridkern.errors import ArgumentError

from .flags import add_context, add_model, load_arguments
from .generate import open_model
from .terminal import note, write
from .values import given_text, integer, words

CHUNK = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add_model(parser)
    group = parser.add_argument_group("text")
    group.add_argument("-f", "--file", metavar="FILE", help="the text; - is standard input")
    group.add_argument("-p", "--prompt", type=words, metavar="TEXT", help="the text itself")
    group.add_argument("--chunks", type=integer(-1), default=-1, metavar="N", help="chunks at most (-1: all)")
    group.add_argument("--process-output", action="store_true", help="observe output.weight too")
    group.add_argument("-o", "--output-file", default="imatrix.gguf", metavar="FILE", help="to write (imatrix.gguf)")
    add_context(parser)


def run(args: argparse.Namespace) -> int:
    """Load with taps, run, write."""
    from hybridkern.gguf.targets import check_target
    from hybridkern.quantize.importance import write_importance
    from hybridkern.runtime.observing import Observed, observe_text
    from hybridkern.runtime.perplexity import cut

    if args.prompt is not None and args.file is not None:
        raise ArgumentError("-p and -f: give one of them")
    text = given_text(args)
    if text is None:
        raise ArgumentError("give the text with -f or -p")
    if args.chunks == 0:
        raise ArgumentError("--chunks 0: nothing would be measured; -1 takes all")
    if args.ctx_size == 0:
        raise ArgumentError("-c 0: the size of the chunks is needed, from 8 on")
    check_target(args.output_file, [args.file] if args.file else [])
    observed = Observed(args.process_output)
    options = load_arguments(args) | {"n_ctx": args.ctx_size or CHUNK, "tap": observed.tap}
    with open_model(args, options, args.output_file) as model:
        chunks = cut(model.tokenize(text), options["n_ctx"], None if args.chunks == -1 else args.chunks)
        observe_text(model, chunks, lambda done: _tell(done, len(chunks)))
    observed.check()
    write_importance(args.output_file, observed.sums, len(chunks), options["n_ctx"], [args.file or "-p"])
    write(f"{args.output_file}: {len(observed.sums)} matrices, {len(chunks)} chunks of {options['n_ctx']} tokens\n")
    return 0


def _tell(done: int, n: int) -> None:
    if sys.stderr.isatty():
        note(f"chunk {done} of {n}")
