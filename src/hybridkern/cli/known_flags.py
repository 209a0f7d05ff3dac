"""Flags of llama.cpp's programs that have no work here: each is accepted with a note, or refused with a reason.

No flag is ignored in silence. A flag with a value of its own takes one; -fa may go without. `TABLE` is the whole list;
the flags that do something here are in `flags.py`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

_EXPERTS = "mixtures of experts are not in this version; --n-cpu-ffn keeps whole feed-forward networks with the CPU"
_FILE = "the file's own values are used"


@dataclass(frozen=True)
class Known:
    """One flag: `answer` is a note when `fine`, else a refusal, unless the value is one of the `harmless`."""

    names: tuple[str, ...]
    values: int
    fine: bool
    answer: str
    harmless: tuple[str, ...] = ()
    optional: bool = False  # the value may be left out


def _note(names: str, answer: str, values: int = 0) -> Known:
    return Known(tuple(names.split()), values, True, answer)


def _bare(names: str, answer: str) -> Known:
    """A note for a flag that was a switch once and takes a value today."""
    return Known(tuple(names.split()), 1, True, answer, optional=True)


def _refuse(names: str, answer: str, values: int = 1, harmless: str = "") -> Known:
    return Known(tuple(names.split()), values, False, answer, tuple(harmless.split()))


TABLE: tuple[Known, ...] = (
    # placement: what does something is in placement_flags.py
    _refuse("-ncmoe --n-cpu-moe", _EXPERTS),
    _refuse("-cmoe --cpu-moe", _EXPERTS, values=0),
    _note("--no-host", "weights that stay in main memory are page-locked only where a GPU reads them"),
    _refuse("-ngld --gpu-layers-draft --n-gpu-layers-draft", "speculative decoding is not in this version"),
    _bare("-fa --flash-attn", "attention is always fused; there is no other kind here"),
    _refuse("--rpc", "running on other machines is not supported"),
    _refuse("-md --model-draft", "speculative decoding is not in this version"),
    _note("-np --parallel", "one command writes one text", 1),
    _note("-cb --cont-batching -nocb --no-cont-batching", "one command writes one text"),
    _note("-kvu --kv-unified", "the KV cache is always one pool of pages"),
    # memory and threads
    _note("-ctkd --cache-type-k-draft", "there is no draft model", 1),
    _note("-dio --direct-io", "not used: the file is mapped, or read with --no-mmap"),
    _refuse("--numa", "NUMA placement is not in this version; use numactl", harmless="none"),
    _refuse("-C --cpu-mask", "use taskset to choose CPUs; the threads follow the affinity mask"),
    _refuse("-Cr --cpu-range", "use taskset to choose CPUs; the threads follow the affinity mask"),
    _note("--cpu-strict", "the threads follow the affinity mask", 1),
    _note("--prio", "priorities are left to nice", 1),
    _note("--poll", "waiting threads choose between polling and sleeping by themselves", 1),
    _refuse("-Cb --cpu-mask-batch", "use taskset to choose CPUs; the threads follow the affinity mask"),
    _refuse("-Crb --cpu-range-batch", "use taskset to choose CPUs; the threads follow the affinity mask"),
    _note("--cpu-strict-batch", "the threads follow the affinity mask", 1),
    _note("--prio-batch", "priorities are left to nice", 1),
    _note("--poll-batch", "waiting threads choose between polling and sleeping by themselves", 1),
    _refuse("-dt --defrag-thold", "the KV cache is paged: nothing to defragment"),
    _note("--swa-full", "sliding-window blocks always keep their whole cache"),
    _note("--check-tensors-off --no-check-tensors", "that is the default"),
    # context and rotary embedding
    _refuse("--rope-scaling", _FILE),
    _refuse("--rope-scale", _FILE),
    _refuse("--rope-freq-base", _FILE),
    _refuse("--rope-freq-scale", _FILE),
    _refuse("--yarn-orig-ctx", _FILE),
    _refuse("--yarn-ext-factor", _FILE),
    _refuse("--yarn-attn-factor", _FILE),
    _refuse("--yarn-beta-slow", _FILE),
    _refuse("--yarn-beta-fast", _FILE),
    _refuse("--keep", "a full context ends the generation; nothing is dropped from it", harmless="0"),
    _refuse("--context-shift --ctx-shift", "a full context ends the generation; nothing is dropped from it", values=0),
    _note("--no-context-shift", "that is the default"),
    _refuse("-gan --grp-attn-n", "self-extend is not supported"),
    _refuse("-gaw --grp-attn-w", "self-extend is not supported"),
    # model source
    _refuse("-hf -hfr --hf-repo", "write -m hf:OWNER/REPO/FILE.gguf"),
    _refuse("-hff --hf-file", "write -m hf:OWNER/REPO/FILE.gguf"),
    _refuse("-hft --hf-token", "set HF_TOKEN, which the hub's client reads"),
    _refuse("-mu --model-url", "download the file, or write -m hf:OWNER/REPO/FILE.gguf"),
    _refuse("-dr --docker-repo", "download the file, or write -m hf:OWNER/REPO/FILE.gguf"),
    _refuse("--override-kv", "metadata is read from the file; change it there with gguf-py's gguf-set-metadata"),
    _refuse("--lora", "adapters are not in this version"),
    _refuse("--lora-scaled", "adapters are not in this version"),
    _refuse("--control-vector", "control vectors are not in this version"),
    _refuse("--control-vector-scaled", "control vectors are not in this version"),
    _refuse("--embedding --embeddings", "embeddings are not in this version", values=0),
    _refuse("--pooling", "embeddings are not in this version"),
    _refuse("--reranking --rerank", "embeddings are not in this version", values=0),
    _refuse("-mm --mmproj", "images and sound are not in this version"),
    # sampling
    _refuse("--samplers", "the order is fixed: bias, penalties, top-k, typical, top-p, min-p, temperature"),
    _refuse("--sampling-seq --sampler-seq", "the order is fixed: see --samplers"),
    _refuse("--grammar", "grammars are not in this version"),
    _refuse("--grammar-file", "grammars are not in this version"),
    _refuse("-j --json-schema", "grammars are not in this version"),
    _refuse("--dry-multiplier", "DRY sampling is not in this version", harmless="0 0.0"),
    _refuse("--xtc-probability", "XTC sampling is not in this version", harmless="0 0.0"),
    _refuse("--dynatemp-range", "dynamic temperature is not in this version", harmless="0 0.0"),
    _refuse("--top-nsigma --top-n-sigma", "top-n-sigma sampling is not in this version", harmless="-1"),
    _refuse("--tfs", "tail-free sampling is not in this version", harmless="1 1.0"),
    _note(
        "-bs --backend-sampling",
        "the likeliest token is chosen where the model lies, any other by the CPU",
    ),
    # terminal
    _note("--jinja", "chat templates are always rendered by jinja2"),
    _refuse("--no-jinja", "chat templates are always rendered by jinja2", values=0),
    _refuse("-i --interactive", "use -cnv for a conversation", values=0),
    _refuse("-if --interactive-first", "use -cnv for a conversation", values=0),
    _note("-no-cnv --no-conversation", "that is the default"),
    _refuse("-mli --multiline-input", "a conversation reads one line at a time; give longer text with -f", values=0),
    _refuse("--in-prefix", "a conversation uses the chat template"),
    _refuse("--in-suffix", "a conversation uses the chat template"),
    _refuse("--prompt-cache", "saving sessions to disk is not in this version"),
    _refuse("--prompt-cache-all --prompt-cache-ro", "saving sessions to disk is not in this version", values=0),
    _refuse("--reasoning-format", "thoughts are shown as the model writes them", harmless="none"),
    _refuse("--reasoning-budget", "thoughts are shown as the model writes them", harmless="-1"),
    _note("--verbose-prompt", "`hybridkern tokenize` shows the tokens of a text"),
    _note("--no-escape", "that is the default"),
    _note("-co --color", "the output has no colours"),
    _note("--simple-io", "the output is always simple"),
    _note("--perf", "timings always go to standard error"),
    _note("--no-perf", "timings go to standard error and cost nothing"),
    _note("--no-warmup", "there is no warm-up run"),
    _note("--warmup", "there is no warm-up run"),
    _note("--log-disable", "there is no log; redirect standard error to silence notes"),
    _note("-lv --verbosity --log-verbosity", "use --verbose", 1),
    _note("--log-colors", "the output has no colours", 1),
    _note("--log-prefix --log-timestamps --offline", "no effect here"),
    _refuse("--log-file", "redirect standard error"),
)


def add_known(parser: argparse.ArgumentParser, but: tuple[str, ...] = ()) -> None:
    """Let `parser` accept every flag of the table; they do not show in its help. but: flags that do something there."""
    parser.set_defaults(notes=None)
    for known in TABLE:
        if not set(but).isdisjoint(known.names):
            continue
        nargs = "?" if known.optional else None if known.values else 0
        parser.add_argument(*known.names, nargs=nargs, action=_Answer, known=known, help=argparse.SUPPRESS)


class _Answer(argparse.Action):
    """Keeps the note for later, or ends the parsing with the reason."""

    def __init__(self, option_strings: list[str], dest: str, known: Known, **rest: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, **rest)
        self.known = known

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        known = self.known
        if known.fine:
            add_note(namespace, f"{option}: {known.answer}")
        elif values in known.harmless and known.values:
            add_note(namespace, f"{option} {values}: no effect")
        else:
            parser.error(f"{option}{f' {values}' if known.values else ''}: {known.answer}")


def add_note(namespace: argparse.Namespace, text: str) -> None:
    """Keep `text` to be shown before the command runs."""
    namespace.notes = [*(namespace.notes or ()), text]
