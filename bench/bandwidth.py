"""Memory read bandwidth, to stand beside every speed that memory limits."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_name("read_bandwidth.c")


@dataclass
class Bandwidth:
    """Measures memory read bandwidth: a small C program where a compiler is found, otherwise NumPy."""

    threads: int
    scratch: Path
    mib: int = 1024

    def __post_init__(self) -> None:
        self.program: Path | None = None
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler:
            program = self.scratch / "read_bandwidth"
            command = [compiler, "-O3", "-march=native", "-pthread", str(SOURCE), "-o", str(program)]
            if subprocess.run(command, capture_output=True).returncode == 0:
                self.program = program

    @property
    def method(self) -> str:
        return SOURCE.name if self.program else "NumPy sum"

    def measure(self) -> float:
        """One sample in GB/s: the best of several passes."""
        return self._compiled() if self.program else self._numpy()

    def _compiled(self) -> float:
        command = [str(self.program), str(self.threads), str(self.mib), "7"]
        return float(subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()[0])

    def _numpy(self) -> float:
        shares = [np.ones((self.mib << 17) // self.threads, np.uint64) for _ in range(self.threads)]
        best = 0.0
        for _ in range(5):
            begin = time.perf_counter()
            running = [threading.Thread(target=np.sum, args=(share,)) for share in shares]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()
            best = max(best, sum(share.nbytes for share in shares) / (time.perf_counter() - begin) / 1e9)
        return best
