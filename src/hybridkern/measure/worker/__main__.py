"""The process that runs one engine, for comparisons in which several take turns: `python FOLDER ENGINE OPTIONS`.

It loads the model once and then answers one JSON request a line, so that the engines take turns in one run while the
others wait. A request holds the name of a method and its arguments; the answer holds `result` or `error`. The Python
that runs a peer needs only the peer's own package, which brings NumPy.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

from llama import UBATCH, Engine, IkLlamaCpp, LlamaCpp
from scoring import perplexity

MIN_SECONDS = 0.3  # a timed turn repeats short work until this much time has been measured


def median_time(work: Callable[[], float], least: float) -> float:
    """The median time of `work`, repeated until `least` seconds have been measured."""
    times = [work()]
    while sum(times) < least:
        times.append(work())
    return statistics.median(times)


def engine_named(name: str) -> Callable[..., Engine]:
    """What makes an engine."""
    if name == "hybridkern":
        from hybridkern.measure.ours import HybridKern

        return HybridKern
    return {engine.name: engine for engine in (LlamaCpp, IkLlamaCpp)}[name]


def serve(engine: Engine, reply: Callable[[Any], None]) -> None:
    """Answer requests from standard input until it closes."""
    methods: dict[str, Callable[..., Any]] = {
        "tokenize": engine.tokenize,
        "perplexity": lambda ids, batch=UBATCH: perplexity(engine, ids, batch),
        "time": lambda prompt, ids, depth=0, least=MIN_SECONDS: median_time(
            lambda: engine.seconds(prompt, ids, depth), least
        ),
    }
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": methods[request["method"]](*request["arguments"])}
        except Exception as error:  # the parent decides what a failure means
            answer = {"error": f"{type(error).__name__}: {error}"}
        reply(answer)


def main() -> int:
    """Load, say which version it is, serve."""
    # An engine may print on standard output: the answers get a descriptor of their own.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(answer: Any) -> None:
        replies.write(json.dumps(answer) + "\n")
        replies.flush()

    try:
        loaded = engine_named(sys.argv[1])(**json.loads(sys.argv[2]))
    except Exception as error:
        reply({"error": f"{type(error).__name__}: {error}"})
        return 1
    reply({"result": loaded.version})
    serve(loaded, reply)
    return 0


if __name__ == "__main__":
    sys.exit(main())
