"""Commands run in this process, on tiny models."""

from __future__ import annotations

import sys
from pathlib import Path

from commands import command, tiny_path
from no_gpu import no_gpu

__all__ = ["command", "no_gpu", "tiny_path"]
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "model"), str(HERE.parent)]
