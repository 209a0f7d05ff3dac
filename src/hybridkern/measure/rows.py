"""What was measured, as flat rows: one for every engine, setting and workload. Names follow llama-bench's."""

from __future__ import annotations

import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridkern.runtime.machine import cpu_name

from .timing import Workload

if TYPE_CHECKING:
    from hybridkern import Model
    from hybridkern.runtime.cost import Cost

OURS = "hybridkern"
# Of a row, in the order of the columns of a CSV file.
COLUMNS = (
    "engine", "version", "commit", "host", "gpu", "kernel_set", "model", "model_bytes", "n_threads", "n_threads_batch",
    "n_batch", "n_ubatch", "type_k", "type_v", "n_gpu_layers", "n_cpu_ffn", "place", "gpu_blocks", "flash_attn",
    "n_ctx", "test", "n_prompt", "n_gen", "n_depth", "test_time", "tokens_per_s", "min", "max", "avg_ts", "stddev_ts",
    "samples_ts", "gmac_per_s", "fraction_of_int8_peak", "gb_per_s", "fraction_of_read", "ours_to_peer",
)  # fmt: skip


def figures(work: Workload, seconds: Sequence[float]) -> dict[str, Any]:
    """Rates from the times of some runs: the median, and the rest."""
    rates = [work.tokens / s for s in seconds]
    return {
        "test": work.name,
        "n_prompt": work.n_prompt,
        "n_gen": work.n_gen,
        "n_depth": work.n_depth,
        "test_time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "tokens_per_s": round(work.tokens / statistics.median(seconds), 3),
        "min": round(min(rates), 3),
        "max": round(max(rates), 3),
        "avg_ts": round(statistics.fmean(rates), 3),
        "stddev_ts": round(statistics.stdev(rates), 3) if len(rates) > 1 else 0.0,
        "samples_ts": [round(rate, 3) for rate in rates],
    }


def setting_of(model: Model, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What a loaded model runs with. asked: the arguments of `load`."""
    from hybridkern import __version__
    from hybridkern.kernels import active

    engine, gpu = model.engine, model.engine.part.gpu
    on_gpu = sum("cuda" in row.device for row in model.plan.table() if row.name.startswith("blk."))
    return {
        "engine": OURS,
        "version": __version__,
        "commit": commit(),
        "host": f"{cpu_name()}, {platform.system()} {platform.machine()}",
        "gpu": None if gpu is None else str(gpu),
        "kernel_set": active() if gpu is None else f"cuda, {gpu}",
        "model": Path(model.file.path).name,
        "model_bytes": sum(w.data.nbytes for w in model.loaded.weights.matrices()),
        "n_threads": engine.threads,
        "n_threads_batch": engine.threads_batch,
        "n_batch": engine.n_batch,
        "n_ubatch": engine.n_ubatch,
        "type_k": model.kv_type,
        "type_v": model.kv_type,
        "n_gpu_layers": "auto" if asked["n_gpu_layers"] is None else asked["n_gpu_layers"],
        "n_cpu_ffn": asked["n_cpu_ffn"],
        "place": asked["place"],
        "gpu_blocks": on_gpu,
        "n_ctx": model.n_ctx,
    }


def effort(model: Model, work: Workload, seconds: float, peaks: Mapping[str, float]) -> dict[str, Any]:
    """Of the median run: multiply-accumulates and bytes a second, and as fractions of the peaks of this machine."""
    from hybridkern.runtime.cost import decode_cost, prompt_cost

    costs: list[Cost] = []
    if work.n_prompt:
        costs.append(prompt_cost(model.loaded, work.n_prompt, model.engine.n_ubatch, model.kv_type, work.n_depth))
    if work.n_gen:
        behind = max(1, work.n_depth + work.n_prompt)
        costs.append(decode_cost(model.loaded, behind, work.n_gen, model.kv_type))
    gmac, gb = (sum(each) / seconds / 1e9 for each in ([c.macs for c in costs], [c.bytes for c in costs]))
    return {
        "gmac_per_s": round(gmac, 3),
        "fraction_of_int8_peak": _fraction(gmac, peaks["int8_gmac_per_s"]),
        "gb_per_s": round(gb, 3),
        "fraction_of_read": _fraction(gb, peaks["read_gb_per_s"]),
    }


def peaks_of(model: Model, known: dict[int, dict[str, float]]) -> dict[str, float]:
    """What memory and multiply units give at most, with the model's threads and the CPU's kernel set; 0 where a GPU
    makes the logits. known: those that were measured, by the number of threads; the answer is added."""
    from hybridkern.kernels.rates import int8_rate, read_rate

    if model.engine.part.gpu is not None:
        return {"read_gb_per_s": 0.0, "int8_gmac_per_s": 0.0}
    threads = model.engine.threads
    if threads not in known:
        known[threads] = {
            "read_gb_per_s": round(read_rate(threads) / 1e9, 3),
            "int8_gmac_per_s": round(int8_rate(threads) / 1e9, 3),
        }
    return known[threads]


def in_turn(runs: Sequence[Callable[[], float]], repetitions: int) -> list[list[float]]:
    """Times of every run, which take turns; the first place goes round. Each runs once before, which is not kept: that
    touches pages and wakes threads."""
    times: list[list[float]] = [[] for _ in runs]
    for turn in range(-1, repetitions):
        first = turn % len(runs)
        for i in [*range(first, len(runs)), *range(first)]:
            seconds = runs[i]()
            if turn >= 0:
                times[i].append(seconds)
    return times


def _fraction(value: float, peak: float) -> float | None:
    return round(value / peak, 4) if peak else None


def commit() -> str | None:
    """The commit of the source tree that this package runs from, None for an installed one."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "pyproject.toml").is_file():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
