"""Write text that continues a prompt, or chat with a model (-cnv).

The text goes to standard output as it comes; notes and timings go to standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hybridkern.errors import ArgumentError

from .flags import add_context, add_model, add_sampling, load_arguments, sampling_arguments
from .placement_flags import keep_plan
from .terminal import console, loading, note, write
from .timing import Clock, timings
from .values import given_text, integer, unescape, words

if TYPE_CHECKING:
    from hybridkern import Model, Piece


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add_model(parser)
    group = parser.add_argument_group("text")
    add = group.add_argument
    add("-p", "--prompt", type=words, metavar="TEXT", help="the prompt; with -cnv the first message")
    add("-f", "--file", metavar="FILE", help="read the prompt from a file; - is standard input")
    length = integer(-2, special="; -1 means until the model ends or the context is full")
    add("-n", "--n-predict", "--predict", type=length, default=-1, metavar="N", help="tokens to write (-1: no limit)")
    add("-e", "--escape", action="store_true", help=r"replace \n, \t, \xHH and the like in -p, -sys and --stop")
    stop = {"type": words, "action": "append", "metavar": "TEXT", "help": "stop before this text; repeatable"}
    add("-r", "--reverse-prompt", "--stop", **stop)
    add("-sp", "--special", action="store_true", help="show control tokens in the output")
    add("--no-display-prompt", dest="show_prompt", action="store_false", help="do not repeat the prompt")
    add("--json", action="store_true", help="one JSON object at the end instead of text")
    chat = parser.add_argument_group("conversation")
    chat.add_argument("-cnv", "--chat", "--conversation", dest="chat", action="store_true", help="chat at the terminal")
    chat.add_argument("-st", "--single-turn", action="store_true", help="end after the first answer")
    system = {"dest": "system", "type": words, "metavar": "TEXT", "help": "the system message"}
    chat.add_argument("-sys", "--system", "--system-prompt", **system)
    chat.add_argument("--chat-template", type=words, metavar="TEMPLATE", help="a jinja template instead of the file's")
    chat.add_argument("--chat-template-file", metavar="FILE", help="the same, from a file")
    add_context(parser)
    add_sampling(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the plan, and read no tensor data")


def main(argv: list[str] | None = None) -> int:
    """The entry point of `hybridkern-generate`."""
    from .main import run_command

    return run_command("generate", sys.argv[1:] if argv is None else argv, "hybridkern-generate")


def run(args: argparse.Namespace) -> int:
    """Load the model and write."""
    _check(args)
    prompt = _prompt(args)
    options = load_arguments(args)
    if args.dry_run:
        from .dry_run import show_dry_run

        return show_dry_run(args, options)
    if not args.chat and prompt is None:
        raise ArgumentError("nothing to continue: give a prompt with -p or -f, or chat with -cnv")
    _check_generation(args)
    clock = Clock()
    with open_model(args, options) as model:
        clock.lap("load")
        if args.verbose:
            tell(model)
        if args.chat:
            from .conversation import converse

            return converse(args, model, prompt, clock)
        return _continue(args, model, prompt or "", clock)


def tell(model: Model) -> None:
    """The plan block by block, and what runs where."""
    from .plan_view import block_table

    console(to_stderr=True).print(block_table(model.plan))
    for line in model.describe().splitlines():
        note(line)


def _check_generation(args: argparse.Namespace) -> None:
    """A wrong number is told before a large model is loaded."""
    from hybridkern.runtime.generation import Request

    Request.checked([], frozenset(), **generation_arguments(args))


def open_model(args: argparse.Namespace, options: dict[str, Any], writes: str | None = None) -> Model:
    """Find the file, say what should be said about it, and load it. writes: a file that is to be written, which must
    not be the model's."""
    from hybridkern.gguf import GGUFFile
    from hybridkern.gguf.targets import check_target
    from hybridkern.runtime.loading import load
    from hybridkern.runtime.locate import locate

    found = locate(args.model, note)
    if found.note:
        note(found.note)
    if writes is not None:
        with GGUFFile.open(found.path) as file:
            check_target(writes, file.paths)
    with loading(f"loading {found.path.name}") as progress:
        model = load(found.path, progress=progress, **options)
    keep_plan(args, model.plan)
    return model


def generation_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `generate` and `chat` that the flags say."""
    stop = args.reverse_prompt or []
    return {
        "max_tokens": None if args.n_predict < 0 else args.n_predict,
        "stop": [unescape(text) for text in stop] if args.escape else stop,
        "show_special": args.special,
        **sampling_arguments(args),
    }


def _continue(args: argparse.Namespace, model: Model, prompt: str, clock: Clock) -> int:
    ids = model.prompt_ids(prompt)
    pieces = model.generate(ids, **generation_arguments(args))
    if args.show_prompt and not args.json:
        write(prompt)
    made = stream(pieces, clock, silent=args.json)
    if args.json:
        write(json.dumps(_record(args, prompt, ids, made, clock), ensure_ascii=False) + "\n")
        return 0
    write("\n")
    if len(ids) + len(made) > model.n_ctx:
        note(f"the context of {model.n_ctx} tokens is full; -c sets its size")
    note(timings(clock, len(ids), len(made)))
    return 0


def stream(pieces: Iterable[Piece], clock: Clock, silent: bool = False) -> list[Piece]:
    """Write pieces as they come; laps "prompt" at the first and "decode" at the last."""
    made = []
    for piece in pieces:
        if not made:
            clock.lap("prompt")
        made.append(piece)
        if not silent:
            write(piece)
    clock.lap("decode" if made else "prompt")
    return made


def _record(args: argparse.Namespace, prompt: str, ids: list[int], made: list[Piece], clock: Clock) -> dict[str, Any]:
    return {
        "model": args.model,
        "prompt": prompt,
        "prompt_ids": ids,
        "text": "".join(made),
        "token_ids": [piece.token_id for piece in made],
        "logprobs": [piece.logprob for piece in made],
        "finish_reason": made[-1].finish_reason if made else None,
        "seconds": {name: round(seconds, 6) for name, seconds in clock.laps.items()},
    }


def _check(args: argparse.Namespace) -> None:
    if args.prompt is not None and args.file is not None:
        raise ArgumentError("-p and -f: give one of them")
    if args.chat_template and args.chat_template_file:
        raise ArgumentError("--chat-template and --chat-template-file: give one of them")
    if not args.chat:
        for value, flag in (
            (args.system, "--system-prompt"),
            (args.chat_template or args.chat_template_file, "--chat-template"),
            (args.single_turn, "--single-turn"),
        ):
            if value:
                raise ArgumentError(f"{flag} belongs to a conversation: add -cnv")
    elif args.json:
        raise ArgumentError("--json and -cnv cannot be used together")
    if args.n_predict == -2:
        args.n_predict = -1  # llama.cpp's "until the context is full"
        args.ignore_eos = True


def _prompt(args: argparse.Namespace) -> str | None:
    text = given_text(args)
    if text is not None and args.escape:
        text = unescape(text)
    return text


if __name__ == "__main__":
    sys.exit(main())
