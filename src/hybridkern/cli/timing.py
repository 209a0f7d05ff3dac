"""Times of a command, and the line that tells them."""

from __future__ import annotations

import time


class Clock:
    """Named laps; a lap that is taken again adds up."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """The time since the last lap goes to `name`."""
        now = time.perf_counter()
        self.laps[name] = self.laps.get(name, 0.0) + now - self._last
        self._last = now

    def restart(self) -> None:
        """The time since the last lap belongs to nobody, such as waiting for the user."""
        self._last = time.perf_counter()


def timings(clock: Clock, n_prompt: int, n_made: int, n_answers: int = 1) -> str:
    """load 0.42 s | prompt 6 tokens, 210.3 t/s | decode 31 tokens, 95.1 t/s.

    The first token of an answer comes out of the prompt's last step, so that decoding is counted from the second on.
    """
    parts = []
    if "load" in clock.laps:
        parts.append(f"load {clock.laps['load']:.2f} s")
    if "prompt" in clock.laps:
        parts.append(f"prompt {n_prompt} tokens, {_rate(n_prompt, clock.laps['prompt'])}")
    steps = max(0, n_made - n_answers)
    if steps and "decode" in clock.laps:
        parts.append(f"decode {steps} tokens, {_rate(steps, clock.laps['decode'])}")
    return " | ".join(parts)


def _rate(n: int, seconds: float) -> str:
    return f"{n / seconds:.1f} t/s" if seconds > 0 else "no time"
