"""Which kernel set runs: the best that this CPU has, or the one that HYBRIDKERN_CPU names.

A set that rounds otherwise than all others, and with it the results of a prompt, runs only when it is named."""

from __future__ import annotations

import os
from functools import cache

from hybridkern.errors import KernelError
from hybridkern.kernels import _cpu

VARIABLE = "HYBRIDKERN_CPU"


def runnable() -> list[str]:
    """Names of the kernel sets that were compiled in and that this CPU can run, in ascending order."""
    have = _cpu.features()
    return [name for name, needs, built in _cpu.kernel_sets() if built and needs & ~have == 0]


def why_not(name: str) -> str:
    """Why a kernel set that is not runnable is not."""
    if not {n: built for n, _, built in _cpu.kernel_sets()}[name]:
        return "not in this build"
    if name.startswith("amx") and _cpu.amx_denied():
        return "this processor has it, but the operating system does not let this process use it"
    return "not on this processor"


def chosen_name(name: str | None = None) -> str:
    """The set to use: `name`, else what HYBRIDKERN_CPU says, else the best of those that agree to the bit. Raises
    KernelError, listing the names."""
    wanted = name if name is not None else os.environ.get(VARIABLE) or None
    can = runnable()
    if wanted is None:
        return [name for name in can if name not in _cpu.rounding_sets()][-1]
    known = [n for n, _, _ in _cpu.kernel_sets()]
    if wanted not in known:
        raise KernelError(f"no CPU kernel set is called {wanted!r} ({VARIABLE}); there are {', '.join(known)}")
    if wanted not in can:
        raise KernelError(
            f"the CPU kernel set {wanted!r} cannot be used ({VARIABLE}): {why_not(wanted)}; usable: {', '.join(can)}"
        )
    return wanted


@cache
def table_named(name: str) -> _cpu.KernelTable:
    """The kernels of a set, filled over those of the sets below it."""
    return _cpu.KernelTable([n for n, _, _ in _cpu.kernel_sets()].index(name))
