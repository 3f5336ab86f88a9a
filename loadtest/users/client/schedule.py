"""Open-loop schedules: requests are due at fixed times, whether or not the last one was answered.

A user that waits for a slow response is late for its next request. Latency is counted from when the
request was due, so the wait shows in the figures rather than in fewer requests.
"""

from __future__ import annotations

import random
import time


class Schedule:
    """Due times `1 / per_second` apart, beginning at a random moment of the first interval."""

    def __init__(self, per_second: float) -> None:
        if per_second <= 0:
            raise ValueError(f"{per_second} requests a second")
        self._interval = 1 / per_second
        self._next = time.perf_counter() + random.random() * self._interval

    def wait(self) -> float:
        """Sleep until the next request is due, unless it is overdue; returns its due time."""
        due = self._next
        self._next += self._interval
        left = due - time.perf_counter()
        if left > 0:
            time.sleep(left)
        return due


def due_us(due: float) -> int:
    """A due time as microseconds since 1970, for the stamp of a record."""
    return time.time_ns() // 1000 - int((time.perf_counter() - due) * 1e6)


def age_s(stamped_us: int) -> float:
    return max(time.time_ns() // 1000 - stamped_us, 0) / 1e6
