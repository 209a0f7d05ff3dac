"""The flags that do something, in groups that the commands share. Names and meanings follow llama.cpp's programs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from .known_flags import add_known
from .placement_flags import add_placement, placement_arguments
from .values import integer, logit_bias, number, one_of, several

KV_TYPES = ("f32", "f16", "q8_0", "q4_0")
# Flags whose value is free text, which may begin with a dash.
TEXT_FLAGS = {
    "-p": "--prompt",
    "--prompt": "--prompt",
    "-sys": "--system-prompt",
    "--system-prompt": "--system-prompt",
    "--system": "--system-prompt",
    "-r": "--reverse-prompt",
    "--reverse-prompt": "--reverse-prompt",
    "--stop": "--reverse-prompt",
}


class Parser(argparse.ArgumentParser):
    """argparse without guessing: no abbreviations, and a prompt may begin with a dash."""

    def __init__(self, **named: Any) -> None:
        named.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **named)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Joins free text to its flag before argparse looks for flags in it."""
        if args is None:
            import sys

            args = sys.argv[1:]
        return super().parse_known_args(self._joined(list(args)), namespace)

    def _joined(self, words: list[str]) -> list[str]:
        out, i = [], 0
        while i < len(words):
            flag = TEXT_FLAGS.get(words[i])
            if flag in self._option_string_actions and i + 1 < len(words):
                out.append(f"{flag}={words[i + 1]}")
                i += 2
            else:
                if self._runs_into_letters(words[i]):
                    self.error(f"unrecognized arguments: {words[i]}")
                out.append(words[i])
                i += 1
        return out

    def _runs_into_letters(self, word: str) -> bool:
        """An unknown flag such as -np, which argparse would read as `-n p`; -n64 stays what it is."""
        known = self._option_string_actions
        return word[:2] in known and word[2:3].isalpha() and word.partition("=")[0] not in known

    def error(self, message: str) -> Any:
        """One line, and exit status 2."""
        self.exit(2, f"hybridkern: error: {message} (see {self.prog} --help)\n")


def add_model(parser: argparse.ArgumentParser) -> None:
    """-m, and how the file is read."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "-m",
        "--model",
        metavar="PATH",
        help="a .gguf file (of a split model the first), package:NAME for the model in an installed Python package, or "
        "hf:OWNER/REPO/FILE (default: the demo model, if installed)",
    )
    group.add_argument("--sha256", metavar="DIGEST", help="refuse the file unless its SHA-256 is this")
    group.add_argument(
        "--validate-quants",
        "--check-tensors",
        dest="validate",
        action="store_true",
        help="read every tensor first and refuse NaN or infinite scales",
    )
    group.add_argument("--no-mmap", dest="mmap", action="store_false", help="read the file instead of mapping it")
    group.add_argument("--mmap", dest="mmap", action="store_true", default=True, help=argparse.SUPPRESS)
    group.add_argument("--mlock", action="store_true", help="keep the file's pages in memory")
    group.add_argument(
        "-nr",
        "--no-repack",
        dest="repack",
        action="store_false",
        default=None,
        help="multiply the file's rows as they lie: loads at once, runs slower (default: only where memory is short)",
    )
    group.add_argument("--repack", dest="repack", action="store_true", help="pack the weights even then")
    group.add_argument("-v", "--verbose", action="store_true", help="say more, with tracebacks")


def add_context(parser: argparse.ArgumentParser, sweeps: bool = False, but: tuple[str, ...] = ()) -> None:
    """Sizes and threads. sweeps: lists of values where that has a meaning (see `settings`); but:
    flags of llama.cpp that do something in this command alone, and that it declares itself."""

    def values(one: Callable[[str], Any], default: Any = None, **named: Any) -> dict[str, Any]:
        return {"type": several(one) if sweeps else one, "default": [default] if sweeps else default, **named}

    kv = {"type": several(one_of(*KV_TYPES), spans=False)} if sweeps else {"choices": KV_TYPES}
    group = parser.add_argument_group("context and threads")
    group.add_argument(
        "-c",
        "--ctx-size",
        type=integer(0, special="; 0 means the model's own context, 1 is too small"),
        metavar="N",
        help="tokens that prompt and answer may take together (default: the model's, at most 8192; 0: the model's)",
    )
    group.add_argument("-b", "--batch-size", **values(integer(1), 2048, metavar="N", help="largest batch (2048)"))
    computed = "computed at once (default: the plan chooses)"
    group.add_argument("-ub", "--ubatch-size", **values(integer(1), metavar="N", help=computed))
    threads = integer(-1, 4096, special="; -1 means the default")
    group.add_argument(
        "-t", "--threads", **values(threads, metavar="N", help="threads (default: physical cores allowed)")
    )
    for_prompts = "threads for prompts (default: -t)"
    group.add_argument("-tb", "--threads-batch", **values(threads, metavar="N", help=for_prompts))
    group.add_argument("-ctk", "--cache-type-k", metavar="TYPE", help=f"{', '.join(KV_TYPES)} (f16)", **kv)
    group.add_argument("-ctv", "--cache-type-v", metavar="TYPE", help="must equal -ctk", **kv)
    add_placement(parser, sweeps)
    add_known(parser, but)


# Flags that take lists where settings are swept.
SWEPT = (
    "threads", "threads_batch", "batch_size", "ubatch_size", "cache_type_k", "cache_type_v", "n_gpu_layers",
    "n_cpu_ffn", "place",
)  # fmt: skip


def settings(args: argparse.Namespace) -> Iterator[argparse.Namespace]:
    """One set of arguments for every combination of the values of flags that take lists; the last flag varies first."""
    for chosen in product(*(getattr(args, name) or [None] for name in SWEPT)):
        yield argparse.Namespace(**vars(args) | dict(zip(SWEPT, chosen, strict=True)))


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """How the next token is chosen."""
    group = parser.add_argument_group("sampling")
    add = group.add_argument
    add("--temp", "--temperature", type=number(0), default=0.8, metavar="T", help="0 takes the likeliest token (0.8)")
    add("--top-k", type=integer(0), default=40, metavar="K", help="0 is off (40)")
    add("--top-p", type=number(0, 1), default=0.95, metavar="P", help="1 is off (0.95)")
    add("--min-p", type=number(0, 1), default=0.05, metavar="P", help="0 is off (0.05)")
    add("--typical", "--typical-p", type=number(0, 1), default=1.0, metavar="P", help="1 is off (1)")
    add("--repeat-penalty", type=number(0), default=1.0, metavar="X", help="1 is off (1)")
    add("--repeat-last-n", type=integer(-1), default=64, metavar="N", help="tokens looked back at; -1 all (64)")
    add("--presence-penalty", type=number(-1e9), default=0.0, metavar="X", help="0 is off (0)")
    add("--frequency-penalty", type=number(-1e9), default=0.0, metavar="X", help="0 is off (0)")
    add("--mirostat", type=int, choices=(0, 1, 2), default=0, metavar="V", help="mirostat 1 or 2; 0 is off (0)")
    add("--mirostat-lr", type=number(0), default=0.1, metavar="ETA", help="learning rate (0.1)")
    add("--mirostat-ent", type=number(0), default=5.0, metavar="TAU", help="target entropy (5)")
    add("-l", "--logit-bias", type=logit_bias, action="append", metavar="ID+X", help="such as 15043-inf; repeatable")
    add("-s", "--seed", type=integer(-1, 2**64 - 1), default=-1, metavar="N", help="-1 draws one (-1)")
    add("--ignore-eos", action="store_true", help="go on after an end token")


def load_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `hybridkern.load` that the flags say."""
    from hybridkern.errors import ArgumentError

    kv = args.cache_type_k or args.cache_type_v or "f16"
    if args.cache_type_v not in (None, kv):
        raise ArgumentError(f"-ctk {kv} and -ctv {args.cache_type_v}: keys and values have one type in this version")
    return {
        "n_ctx": "model" if args.ctx_size == 0 else args.ctx_size,
        "threads": _count(args.threads, "-t"),
        "threads_batch": _count(args.threads_batch, "-tb"),
        "n_batch": args.batch_size,
        "n_ubatch": args.ubatch_size,
        "kv_type": kv,
        **placement_arguments(args),
        "mmap": args.mmap,
        "mlock": args.mlock,
        "sha256": args.sha256,
        "validate": args.validate,
        "repack": args.repack,
    }


def _count(value: int | None, flag: str) -> int | None:
    from hybridkern.errors import ArgumentError

    if value == 0:
        raise ArgumentError(f"{flag} 0: allowed: 1 or more, or -1 for the default")
    return None if value == -1 else value


def sampling_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `Model.generate` that the flags say."""
    bias: dict[int, float] = {}
    for each in args.logit_bias or ():
        bias.update(each)
    return {
        "temperature": args.temp,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "min_p": args.min_p,
        "typical_p": args.typical,
        "repeat_penalty": args.repeat_penalty,
        "repeat_last_n": args.repeat_last_n,
        "presence_penalty": args.presence_penalty,
        "frequency_penalty": args.frequency_penalty,
        "mirostat": args.mirostat,
        "mirostat_eta": args.mirostat_lr,
        "mirostat_tau": args.mirostat_ent,
        "logit_bias": bias or None,
        "seed": None if args.seed == -1 else args.seed,
        "ignore_eos": args.ignore_eos,
    }
