"""Show the tokens of a text: one a line, the id and the text in the vocabulary."""

from __future__ import annotations

import argparse
import json

from hybridkern.errors import ArgumentError

from .flags import add_model
from .terminal import note, write
from .values import given_text, words


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add_model(parser)
    group = parser.add_argument_group("text")
    group.add_argument("-p", "--prompt", type=words, metavar="TEXT", help="the text")
    group.add_argument("-f", "--file", metavar="FILE", help="read the text from a file; - is standard input")
    group.add_argument("--no-bos", dest="bos", action="store_false", default=None, help="never begin with BOS")
    group.add_argument(
        "--no-parse-special", dest="special", action="store_false", help="control tokens in the text are plain text"
    )
    group.add_argument("--ids", action="store_true", help="ids only, as a list")
    group.add_argument("--json", action="store_true", help="a JSON list of {id, text}")


def run(args: argparse.Namespace) -> int:
    """Only the vocabulary is read."""
    from hybridkern.runtime.locate import locate
    from hybridkern.runtime.model_api import read_vocabulary

    if (args.prompt is None) == (args.file is None):
        raise ArgumentError("give the text with -p or with -f")
    text = given_text(args)
    assert text is not None
    found = locate(args.model, note)
    if found.note:
        note(found.note)
    vocabulary = read_vocabulary(found.path)
    ids = vocabulary.encode(text, special=args.special, bos=args.bos)
    if args.ids:
        write(f"{ids}\n")
    elif args.json:
        rows = [{"id": token, "text": shown} for token, shown in zip(ids, vocabulary.token_texts(ids), strict=True)]
        write(json.dumps(rows, ensure_ascii=False) + "\n")
    else:
        for token, shown in zip(ids, vocabulary.token_texts(ids), strict=True):
            write(f"{token:>7}  {shown!r}\n")
    return 0
