"""Open-loop schedules: what is due is due, whether or not the answer before came in time.

A user that waits for a slow answer is late for what comes next; latency is counted from when it was
due, so that the wait shows in the figures rather than in fewer requests.
"""

from __future__ import annotations

import random
import time


class Pace:
    """Due times `1 / per_second` apart, from a random moment of the first interval on."""

    def __init__(self, per_second: float) -> None:
        if per_second <= 0:
            raise ValueError(f"{per_second} requests a second")
        self._interval = 1 / per_second
        self._next = time.perf_counter() + random.random() * self._interval

    def wait(self) -> float:
        """Sleep until the next one is due, not at all when it is overdue; gives its due time."""
        due = self._next
        self._next += self._interval
        left = due - time.perf_counter()
        if left > 0:
            time.sleep(left)
        return due


def due_us(due: float) -> int:
    """A due time by the clock of the wall: what a record says about itself."""
    return time.time_ns() // 1000 - int((time.perf_counter() - due) * 1e6)


def age_s(stamped_us: int) -> float:
    return max(time.time_ns() // 1000 - stamped_us, 0) / 1e6
