"""Engines in processes of their own (worker/), which take turns with this one or with each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from hybridkern.errors import ArgumentError, HybridKernError

from .timing import Workload

WORKER = Path(__file__).with_name("worker")
# name of the Python package -> name of the engine
PEERS = {"llama-cpp-python": "llama.cpp", "ik-llama-cpp-python": "ik_llama.cpp"}
TOLERANCE = 0.06  # of a perplexity over some 60 tokens: the noise of quantised activations alone gave 2.4 %
TEXT = (
    "A lighthouse stands on the last rock of the coast. Every evening its keeper climbs ninety steps, cleans the lamp "
    "and writes into a book what the weather is like. Ships that pass at night know by the rhythm of the light where "
    "they are, and turn north, to the harbour, before the water becomes shallow."
)


class PeerError(HybridKernError):
    """A process that runs another engine has ended, or cannot do what it was asked."""


class Worker:
    """One engine in one setting, loaded in its own process."""

    def __init__(
        self, label: str, engine: str, python: str, options: Mapping[str, Any], env: Mapping[str, str] | None = None
    ) -> None:
        """Raises PeerError where the engine or the model cannot be loaded."""
        self.label, self.engine = label, engine
        try:
            self._process = subprocess.Popen(
                [python, str(WORKER), engine, json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | dict(env or {}),
                text=True,
            )
        except OSError as error:
            raise PeerError(f"{label}: {python} cannot be run: {error.strerror or error}") from error
        try:
            self.version: str = self._answer()
        except BaseException:
            self.close()
            raise

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"{self.label}: its process ended (exit status {self._process.wait()})")
        try:
            answer = json.loads(line)
        except ValueError:
            raise PeerError(f"{self.label}: its process answered {line[:80]!r}") from None
        if "error" in answer:
            raise PeerError(f"{self.label}: {answer['error']}")
        return answer["result"]

    def call(self, method: str, *arguments: Any) -> Any:
        """One request, one answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"method": method, "arguments": arguments}) + "\n")
            self._process.stdin.flush()
        except OSError:  # it has ended: reading says so
            pass
        return self._answer()

    def seconds(self, work: Workload, ids: Sequence[int], least: float = 0.0) -> float:
        """The median time of runs of a workload, as many as take `least` seconds together."""
        _, prompt, steps = work.ids(ids)
        return float(self.call("time", prompt, steps, work.n_depth, least))

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            try:
                if stream is not None:
                    stream.close()
            except OSError:
                pass
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def check_installed(package: str, python: str | None) -> None:
    """Raises ArgumentError unless a Python can import the peer's package."""
    module = package.removesuffix("-python").replace("-", "_")
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    try:
        found = subprocess.run([python or sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
    except OSError as error:
        raise ArgumentError(f"--peer-python {python} cannot be run: {error.strerror or error}") from error
    if not found:
        where = f"in the Python {python}" if python else "in this Python"
        raise ArgumentError(
            f"{package} is not installed {where}: pip install {package}, or name the Python that has it with "
            "--peer-python"
        )


def perplexities(model: Any, worker: Worker) -> tuple[float, float]:
    """Of the same few tokens in a loaded model of ours and in a worker: whether both compute the same."""
    import numpy as np

    ids = model.tokenize(TEXT, bos=model.vocabulary.add_bos)[: max(2, min(64, model.n_ctx))]
    logits = model.logits(ids[:-1]).astype(np.float64)
    top = logits.max(axis=1)
    total = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top
    ours = float(np.exp((total - logits[np.arange(len(ids) - 1), ids[1:]]).mean()))
    return ours, float(worker.call("perplexity", ids))
