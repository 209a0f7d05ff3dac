"""`hybridkern COMMAND ...`: finds the command and hands it its arguments."""

from __future__ import annotations

import sys
from importlib import import_module

from .flags import Parser
from .outcome import carry_out

# command -> (module, what it does)
COMMANDS = {
    "generate": ("generate", "write text that continues a prompt, or chat"),
    "tokenize": ("tokenize", "show the tokens of a text"),
    "plan": ("plan", "draw where a model's parts would lie, and how fast that would be"),
    "bench": ("bench", "measure prompt and generation speed"),
    "tune": ("tune", "find the fastest threads, ubatch and placement of a model on this machine"),
    "convert": ("convert", "write a Hugging Face folder as a GGUF file"),
    "quantize": ("quantize", "write a model in another file type"),
    "perplexity": ("perplexity", "measure how well a model predicts a text"),
    "imatrix": ("imatrix", "measure which columns of a model's matrices matter"),
    "info": ("info", "describe a model file"),
    "describe": ("info", "the same as info"),
    "doctor": ("doctor", "describe this machine as hybridkern sees it"),
    "setup-cuda": ("setup_cuda", "install what a GPU needs, without a CUDA toolkit"),
}


def main(argv: list[str] | None = None) -> int:
    """The entry point of `hybridkern`."""
    words = sys.argv[1:] if argv is None else argv
    parser = Parser(prog="hybridkern", description="Run GGUF language models.", epilog=_listing())
    parser.add_argument("--version", action="store_true", help="show the version")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help="one of the commands below")
    if words and words[0] in COMMANDS:
        return run_command(words[0], words[1:])
    args = parser.parse_args(words[:1])
    if args.version:
        return carry_out(_show_version, args)
    if args.command is None:
        parser.print_help()
        return 0
    return parser.error(f"{args.command!r} is not a command; commands: {', '.join(COMMANDS)}")


def run_command(name: str, words: list[str], prog: str | None = None) -> int:
    """Parse the arguments of one command and carry it out."""
    module_name, summary = COMMANDS[name]
    module = import_module(f".{module_name}", __package__)
    parser = Parser(prog=prog or f"hybridkern {name}", description=module.__doc__ or summary)
    module.add_arguments(parser)
    parser.add_argument("--version", action="store_true", help="show the version")
    args = parser.parse_args(words)
    return carry_out(_show_version if args.version else module.run, args)


def _show_version(args: object) -> int:
    from hybridkern import __version__

    from .terminal import write

    write(f"hybridkern {__version__}\n")
    return 0


def _listing() -> str:
    return "commands:\n" + "\n".join(f"  {name:<11} {summary}" for name, (_, summary) in COMMANDS.items())


if __name__ == "__main__":
    sys.exit(main())
