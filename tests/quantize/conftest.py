"""What the tests of quantisers share."""

from __future__ import annotations

import sys
from pathlib import Path

from commands import command, tiny_path

__all__ = ["command", "tiny_path"]
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "golden"), str(HERE), str(HERE.parent / "model"), str(HERE.parent)]
