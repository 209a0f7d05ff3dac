"""Whose turn it is: one caller at a time works with a model, and none in a process that was forked since."""

from __future__ import annotations

import os
import weakref

from hybridkern.errors import HybridKernError
from hybridkern.kernels import _cpu

_turns: weakref.WeakSet[Turn]


class Turn(_cpu.Turn):
    """A lock for `with`. Neither Ctrl-C nor a fork at any moment leaves it taken."""

    def __init__(self) -> None:
        super().__init__()
        self._inherited = False
        _turns.add(self)

    def begin(self) -> None:
        """Called with the lock taken; raises HybridKernError in a child process."""
        if self._inherited:
            raise HybridKernError("this model was loaded before the process forked: load it again in the child")

    def inherit(self) -> None:
        """This is a child process: its parent's threads, and what they were at, are not there."""
        self._inherited = True
        self.renew()


_turns = weakref.WeakSet()


def _after_fork() -> None:
    for turn in list(_turns):
        turn.inherit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
    os.register_at_fork(after_in_child=_cpu.note_fork)
