"""Write a Hugging Face folder (config.json, *.safetensors, tokenizer) as one GGUF file.

Architectures: Llama, Mistral, Qwen 2 and 3, Gemma 2 and 3 (text), Phi-3. What the folder has and a GGUF file cannot say
is refused, with the key or the tensor. The new file appears under its name when it is complete, and not before.
"""

from __future__ import annotations

import argparse
import time

from .terminal import note, size, write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add = parser.add_argument
    add("folder", metavar="DIR", help="the folder with config.json")
    add("output", metavar="OUT.gguf", help="the file to write; what stands there is replaced")
    add(
        "--outtype",
        type=str.lower,
        choices=("auto", "f16", "bf16", "f32"),
        default="auto",
        metavar="TYPE",
        help="of the matrices: f16, bf16, f32, or auto: f16 where the folder has that, else bf16 (auto)",
    )
    add("--dry-run", action="store_true", help="check everything but the values, write nothing")
    add("-v", "--verbose", action="store_true", help="say more, with tracebacks")


def run(args: argparse.Namespace) -> int:
    """Check, say what is left out, write."""
    from hybridkern.convert import convert_folder, inspect_folder
    from hybridkern.gguf.targets import check_target

    from .quantize import progress

    made = inspect_folder(args.folder, args.outtype)
    check_target(args.output, made.folder.iterdir())
    for text in made.shape.notes:
        note(text)
    summary = f"{made.shape.arch.name}, {len(made.places)} tensors, {size(made.nbytes)} -> {made.type}"
    if args.dry_run:
        write(f"{summary}; nothing written\n")
        return 0
    begin = time.perf_counter()
    with progress(made.nbytes, "converting") as heard:
        written = convert_folder(made, args.output, heard)
    write(f"{summary}; {written} bytes in {time.perf_counter() - begin:.2f} s\n")
    return 0
