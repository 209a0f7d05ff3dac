"""The plan: sizes, budgets, rules and rates in, a placement and its predicted speed out.

The room is also what `hybridkern.plan(path, ...)` calls: see `hybridkern.runtime.planning.plan`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """A name of the package cannot be both a module and a function, unless the module can be called."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        from importlib import import_module

        return import_module("hybridkern.runtime.planning").plan(*args, **options)


sys.modules[__name__].__class__ = _Room
