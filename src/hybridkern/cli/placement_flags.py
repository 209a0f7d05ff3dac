"""The flags that say where things lie, and what becomes of them as arguments of `load`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .values import gpu_name, integer, layers, numbers, on_off, several


def add_placement(parser: argparse.ArgumentParser, sweeps: bool = False) -> None:
    """-ngl and its kin. sweeps: some take lists of values."""
    of_layers, of_ffn, of_place = layers, integer(0), str
    if sweeps:
        of_layers, of_ffn, of_place = several(layers), several(integer(0)), lambda text: text.split(";")
    group = parser.add_argument_group("placement")
    add = group.add_argument
    add(
        "-ngl", "--n-gpu-layers", "--gpu-layers", type=of_layers, metavar="N",
        help="auto (default): what fits and gains is on the GPU; all; N: the head and the last N - 1 blocks; 0: none",
    )  # fmt: skip
    add("-dev", "--device", type=gpu_name, metavar="NAME", help="CUDA0, CUDA1, ...; none: the CPU alone")
    add("-mg", "--main-gpu", type=integer(0, 1023), metavar="N", help="which GPU, by number (0)")
    add("--gpu-memory", type=numbers(1), metavar="MIB[,MIB]", help="use no more of a GPU, CUDA's own share included")
    add(
        "--place",
        type=of_place,
        metavar="BLOCKS=DEVICE,...",
        help="blk.0-19=cuda0,blk.20-31=cpu; also blk.*.ffn, kv.0-9, embd, head",
    )
    add(
        "-ot", "--override-tensor", action="append", metavar="PATTERN=DEVICE",
        help="tensors whose names the regular expression finds; repeatable, the first that matches wins",
    )  # fmt: skip
    add(
        "--n-cpu-ffn", type=of_ffn, default=[0] if sweeps else 0, metavar="N",
        help="feed-forward networks of N blocks stay in RAM",
    )  # fmt: skip
    add("-nkvo", "--no-kv-offload", dest="kv_offload", action="store_false", help="the KV cache stays in RAM")
    add("-kvo", "--kv-offload", dest="kv_offload", action="store_true", default=True, help=argparse.SUPPRESS)
    add(
        "--no-op-offload",
        dest="op_offload",
        action="store_false",
        help="never stream weights to a GPU for long prompts",
    )
    add("--op-offload", dest="op_offload", action="store_true", default=True, help=argparse.SUPPRESS)
    add("-fit", "--fit", type=on_off, default=True, metavar="on|off", help="off: place on the GPU without asking (on)")
    add(
        "-fitt", "--fit-margin", "--fit-target", type=numbers(0), metavar="MIB[,MIB]",
        help="leave so much of a GPU free (256; 0 with --gpu-memory)",
    )  # fmt: skip
    add(
        "-fitc",
        "--fit-ctx",
        type=integer(2),
        metavar="N",
        help="without -c, fitting may shrink the context to N (4096)",
    )
    add(
        "-sm", "--split-mode", choices=("layer", "none"), default="layer", help="several GPUs by layers, or one (layer)"
    )
    add("-ts", "--tensor-split", type=numbers(0, whole=False), metavar="A,B,...", help="the GPUs' shares of the layers")
    add("--plan", type=Path, metavar="FILE", help="follow the plan in this file; if there is none, save it there")
    add(
        "--no-tune-cache", dest="tuned", action="store_false", default=True,
        help="do without what `hybridkern tune` found for this model",
    )  # fmt: skip


def placement_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """-ngl says whether, --device or --main-gpu say which."""
    from hybridkern.errors import ArgumentError

    wanted, named = args.n_gpu_layers, args.device
    if named == "none":
        if wanted not in (None, "auto", 0):
            raise ArgumentError(f"-ngl {wanted} and --device none: give one of them")
        number = None
    elif named is not None:
        if args.main_gpu not in (None, named):
            raise ArgumentError(f"--device CUDA{named} and --main-gpu {args.main_gpu}: give one of them")
        number = named
    else:
        number = args.main_gpu or 0
    return {
        "n_gpu_layers": wanted,
        "device": number,
        "gpu_memory": args.gpu_memory,
        "place": args.place,
        "override_tensor": tuple(args.override_tensor or ()),
        "n_cpu_ffn": args.n_cpu_ffn,
        "kv_offload": args.kv_offload,
        "op_offload": args.op_offload,
        "fit": args.fit,
        "fit_margin": args.fit_margin,
        "fit_ctx": args.fit_ctx,
        "split_mode": "none" if isinstance(named, int) else args.split_mode,
        "tensor_split": args.tensor_split or (),
        "plan": args.plan if args.plan is not None and args.plan.exists() else None,
        "tuned": args.tuned,
    }


def keep_plan(args: argparse.Namespace, plan: Any) -> None:
    """Save a plan where --plan says, unless it came from there."""
    from hybridkern.errors import ArgumentError

    if args.plan is None or args.plan.exists():
        return
    try:
        args.plan.write_text(plan.to_json(), encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"--plan {args.plan} cannot be written: {error.strerror or error}") from error
