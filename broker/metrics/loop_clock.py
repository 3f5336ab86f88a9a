"""The time at which the current turn of the event loop began to handle its input.

It is read where bytes arrive from clients and from the store, and used for everything that follows
from them: reading the clock for each request and append would cost more than counting them.
"""

from __future__ import annotations

from time import monotonic_ns


class LoopClock:
    __slots__ = ("now_ns",)

    def __init__(self) -> None:
        self.now_ns = monotonic_ns()

    def read(self) -> int:
        self.now_ns = now = monotonic_ns()
        return now


loop_clock = LoopClock()  # a process has one event loop
