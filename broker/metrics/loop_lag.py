"""Measures how late the event loop of a process is: every client waits at least that long."""

from __future__ import annotations

import asyncio
import time

from moldau.broker.metrics.document import Family
from moldau.broker.metrics.histogram import DurationHistogram, duration_family

EVERY_S = 0.25


class LoopLag:
    """A timer that observes how late it fires."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._histogram = DurationHistogram()
        self._due_ns = 0  # uvloop's own clock has a resolution of a millisecond
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._due_ns = time.monotonic_ns() + int(EVERY_S * 1e9)
        self._timer = self._loop.call_later(EVERY_S, self._fired)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _fired(self) -> None:
        self._histogram.observe(max(time.monotonic_ns() - self._due_ns, 0))
        self.start()

    def family(self) -> Family:
        return duration_family(
            "moldau_event_loop_lag_seconds",
            "How late timers of the event loop are, four times a second.",
            (),
            [self._histogram.sample()],
            by_role=True,
        )
