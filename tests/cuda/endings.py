"""How a process may end that has used the GPU: `python endings.py HOW MODEL`. What it writes last is "done"."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from collections.abc import Callable

import hybridkern as hk

how, path = sys.argv[1:]
hook: list[Callable[[], None]] = []
atexit.register(lambda: [call() for call in hook])


def used() -> hk.Model:
    """A model that has decoded some tokens."""
    model = hk.load(path, n_gpu_layers="all")
    assert len(list(model.generate([1, 2, 3], max_tokens=20, temperature=0, ignore_eos=True))) == 20
    return model


if how == "torch":
    import torch

    assert float(torch.ones(3, device="cuda").sum()) == 3
if how in ("thread", "daemon"):
    thread = threading.Thread(target=lambda: globals().update(kept=used()), daemon=how == "daemon")
    thread.start()
    thread.join()
elif how == "generating":
    kept = hk.load(path, n_gpu_layers="all")
    pieces = kept.generate([1, 2, 3], max_tokens=None, temperature=0, ignore_eos=True)
    next(pieces), next(pieces), next(pieces)
else:
    kept = used()
if how == "closed":
    kept.close()
if how == "later":  # handlers run in reverse order: by then the GPU is closed

    def use() -> None:
        try:
            kept.close()
            hk.load(path, n_gpu_layers="all")
        except hk.HybridKernError as error:
            assert "the process is ending" in str(error), error
        else:
            print("the GPU was there", file=sys.stderr)

    hook.append(use)
if how == "torch":
    assert float(torch.ones(3, device="cuda").sum()) == 3
if how == "fork":
    warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads
    child = os.fork()
    if child == 0:
        for attempt in (lambda: kept.logits([1]), lambda: hk.load(path, n_gpu_layers="all")):
            try:
                attempt()
                os._exit(1)
            except hk.HybridKernError as error:
                assert "fork" in str(error)
        assert hk.load(path, device=None).logits([1]).shape[0] == 1
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
print("done", flush=True)
if how == "exception":
    raise SystemError("as the test asked")
