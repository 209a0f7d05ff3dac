"""What the tests of the conversion share."""

from __future__ import annotations

import sys
from pathlib import Path

from commands import command

__all__ = ["command"]
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "model")]
