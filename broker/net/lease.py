"""How long a process may serve clients by its own clock, with a store that others can use as well.

    renewed          not renewed in time
    serving ───────────────────────────▶ over: serves nobody
       ▲                                   │
       └─────────── renewed ───────────────┘

The store grants a lease for some seconds by its own TIME (`store/lease.py`). A process counts it
from before it sent the renewal, less a tenth for clocks that run at different speeds, so its own
lease ends first. The clock runs on while the machine is suspended and the process is stopped.
Pure: no I/O; the clock is an argument.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LEASE_MS = 9_000  # Kafka's broker.session.timeout.ms
RENEW_EVERY_S = 1.0
LOOK_EVERY_S = 0.25
# CLOCK_MONOTONIC stands still on Linux while the machine is suspended; elsewhere it does not.
_clock_ns = time.clock_gettime_ns
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_ns() -> int:
    """The time since the machine started, which is the same for all its processes."""
    return _clock_ns(_CLOCK)


class Lease:
    """The lease as one process sees it. It begins when it is renewed for the first time."""

    def __init__(self, lease_ms: int, clock: Callable[[], int] = boot_ns) -> None:
        self._counts_ns = lease_ms * 900_000
        self._clock = clock
        self.until_ns = 0
        # The same by the clock of the event loop, which stands still in a suspended machine.
        self.until_monotonic_ns = 0
        self.was_over = True  # when it was last asked

    def now(self) -> int:
        return self._clock()

    def renewed(self, sent_ns: int) -> None:
        """The store has granted it after `sent_ns`."""
        self.extend(sent_ns + self._counts_ns)

    def extend(self, until_ns: int) -> None:
        """As far as another process of this machine knows."""
        if until_ns > self.until_ns:
            self.until_ns = until_ns
            self.until_monotonic_ns = time.monotonic_ns() + until_ns - self._clock()
        self.is_over()

    def lose(self) -> None:
        """Another broker has it."""
        self.until_ns = self.until_monotonic_ns = 0
        self.was_over = True

    def is_over(self) -> bool:
        self.was_over = over = self._clock() >= self.until_ns
        return over

    @property
    def left_s(self) -> float:
        return max(self.until_ns - self._clock(), 0) / 1e9
