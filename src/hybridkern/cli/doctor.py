"""Describe this machine as hybridkern sees it: CPU, kernel sets, threads, memory."""

from __future__ import annotations

import argparse
import platform
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""


def run(args: argparse.Namespace) -> int:
    """Not yet."""
    return 0


def cpu_name() -> str:
    """The processor's name as its maker writes it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
