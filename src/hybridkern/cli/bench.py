"""Measure prompt and generation speed."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    from .flags import add_model

    add_model(parser)


def run(args: argparse.Namespace) -> int:
    """Not yet."""
    from .generate import open_model

    with open_model(args, {}):
        return 0
