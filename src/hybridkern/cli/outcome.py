"""What becomes of a command: its exit status and, where it failed, one line on standard error.

0 done; 1 an error of the model, the file or the machine; 2 an argument that cannot be used; 130 interrupted. A reader
that goes away (`| head`) ends the command quietly.
"""

from __future__ import annotations

import argparse
import sys
import traceback
import warnings
from collections.abc import Callable

from hybridkern.errors import ArgumentError, HybridKernError

from .terminal import note, prepare_streams, silence_stdout

INTERRUPTED = 130


def carry_out(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command and turn what happens into an exit status."""
    prepare_streams()
    try:
        for text in getattr(args, "notes", None) or ():
            note(text)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            status = run(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        note("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        silence_stdout()
        return 0
    except HybridKernError as error:
        return _failed(args, error, 2 if isinstance(error, ArgumentError) else 1)
    except (OSError, MemoryError, Warning) as error:  # a warning: PYTHONWARNINGS=error makes errors of them
        return _failed(args, error, 1)


def _failed(args: argparse.Namespace, error: Exception, status: int) -> int:
    if getattr(args, "verbose", False):
        traceback.print_exc()
    note(f"error: {' '.join(str(error).split()) or type(error).__name__}")
    return status


def _show_warning(message: Warning | str, category: type[Warning], *rest: object, **named: object) -> None:
    note(f"warning: {' '.join(str(message).split())}")
