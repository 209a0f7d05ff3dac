"""`hybridkern.load`: from a file and its arguments to a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from hybridkern.gguf import GGUFFile
from hybridkern.model import LoadedModel
from hybridkern.plan.plan import Plan

from .arguments import LoadOptions
from .locate import locate
from .model_api import Model


def load(
    path: str | os.PathLike[str] | None,
    *,
    n_ctx: int | str | None = None,
    threads: int | None = None,
    threads_batch: int | None = None,
    n_batch: int = 2048,
    n_ubatch: int | None = None,
    kv_type: str = "f16",
    n_gpu_layers: int | str | None = None,
    device: int | None = 0,
    gpu_memory: int | Sequence[int] | None = None,
    place: str | None = None,
    override_tensor: str | Sequence[str] = (),
    n_cpu_ffn: int = 0,
    kv_offload: bool = True,
    op_offload: bool = True,
    fit: bool = True,
    fit_margin: int | Sequence[int] | None = None,
    fit_ctx: int | None = None,
    split_mode: str = "layer",
    tensor_split: Sequence[float] = (),
    plan: Plan | str | os.PathLike[str] | None = None,
    tuned: bool = True,
    mmap: bool = True,
    mlock: bool = False,
    sha256: str | None = None,
    validate: bool = False,
    repack: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    tap: Callable[[LoadedModel], LoadedModel] | None = None,
) -> Model:
    """Load a GGUF model.

    path: a .gguf file (of a split model the first), "package:NAME" for the model inside an installed Python package,
        "hf:OWNER/REPO/FILE.gguf" (needs huggingface_hub), or None for the demo model.
    n_ctx: tokens that prompt and answer may take together. None: as many as the model was trained with, at most 8192;
        "model": as many as it was trained with.
    threads, threads_batch: for generation and for prompts; by default the physical cores that this process may use.
    n_batch, n_ubatch: most tokens of one call and of one pass over the weights; None leaves n_ubatch to the plan.
    kv_type: "f16", "q8_0", "q4_0" or "f32" (not on a GPU).
    n_gpu_layers: "auto" and None place on the GPU what fits and gains, with the CPU the rest; "all" all of it on the
        GPU; N the head and the last N - 1 blocks; 0 nothing. Raises KernelError where a GPU that was asked for cannot
        be used.
    device: which GPU, None: none.
    gpu_memory: MiB that may be used of a GPU, one number or one for each; fit_margin: MiB that stay free.
    place: "blk.0-19=cuda0,blk.20-31=cpu"; also blk.*.ffn, blk.*.attn, kv.0-9 (caches), embd, head.
    override_tensor: "PATTERN=DEVICE" or several; a pattern is searched in tensors' names, the first that matches wins.
    n_cpu_ffn: the feed-forward networks of the first so many blocks stay with the CPU.
    kv_offload: False keeps the KV cache with the CPU. op_offload: False never streams weights to a GPU.
    fit: False places what no rule places on the GPU, whether it fits or not.
    fit_ctx: without n_ctx, fitting may shrink the context to this (default 4096).
    split_mode, tensor_split: "layer" may use several GPUs, in these shares; "none" uses one.
    plan: a Plan, or the file of one that was saved: it is followed as it is.
    tuned: False does without what `hybridkern tune` found for this model on this machine.
    mmap, mlock: map the file instead of reading it; keep its pages in memory.
    sha256: refuse the file unless its digest is this.
    validate: read every tensor first and refuse NaN and infinite scales.
    repack: True packs the weights for the CPU's kernels, which then run fastest; False multiplies the file's rows as
        they lie, loads at once and needs no memory beside the file's pages. By default False where memory is short.
    progress: called with the bytes of weights that were loaded and that there are.
    tap: given the model that is bound to the file, gives the one to record in its place (see `runtime.observing`).
    """
    options = LoadOptions.checked(
        n_ctx=n_ctx,
        threads=threads,
        threads_batch=threads_batch,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        kv_type=kv_type,
        n_gpu_layers=n_gpu_layers,
        device=device,
        gpu_memory=gpu_memory,
        place=place,
        override_tensor=override_tensor,
        n_cpu_ffn=n_cpu_ffn,
        kv_offload=kv_offload,
        op_offload=op_offload,
        fit=fit,
        fit_margin=fit_margin,
        fit_ctx=fit_ctx,
        split_mode=split_mode,
        tensor_split=tensor_split,
        plan=plan,
        tuned=tuned,
        mmap=mmap,
        mlock=mlock,
        validate=validate,
        repack=repack,
    )
    file = GGUFFile.open(locate(path).path, mmap=mmap, mlock=mlock, sha256=sha256)
    try:
        return Model(file, options, progress, tap)
    except BaseException:
        file.close()
        raise
