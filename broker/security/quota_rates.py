"""How much an entity has used lately, and for how long it has to wait: Kafka's arithmetic.

A `Rate` counts over `num` windows of `size_ms`, like Kafka's Rate over a SampledStat: a window
begins with the first event in it, and until there are enough windows the missing ones count as
unused time. Therefore a client may begin with a burst of nearly the whole span.

A `TokenBucket` (KIP-599) is for usage in bursts: it holds the tokens of `num` windows. Both take
the time in milliseconds; nothing here has a clock.
"""

from __future__ import annotations

from collections import deque

import msgspec

MAX_THROTTLE_MS = (1 << 31) - 1  # it has to fit the field in the reply


class Windows(msgspec.Struct, frozen=True):
    """`quota.window.num` and `quota.window.size.seconds`."""

    num: int = 11
    size_ms: int = 1000

    @property
    def span_ms(self) -> int:
        return self.num * self.size_ms


class _Window(msgspec.Struct, gc=False):
    start: float
    last: float  # the time of its last event
    used: float


class Rate:
    """The usage within the last windows."""

    __slots__ = ("_recent", "_span_ms", "_used", "windows")

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self._span_ms = windows.span_ms
        self._recent: deque[_Window] = deque()
        self._used: float = 0

    def record(self, amount: float, now: float) -> None:
        recent = self._recent
        if not recent or now - recent[-1].start >= self.windows.size_ms:
            recent.append(_Window(now, now, amount))
        else:
            current = recent[-1]
            current.used += amount
            current.last = now
        self._used += amount

    def used(self, now: float) -> float:
        """Return the usage. A window that reaches into the span counts as a whole."""
        recent = self._recent
        while recent and now - recent[0].last >= self._span_ms:
            self._used -= recent.popleft().used
        if not recent:
            self._used = 0  # no rounding error is kept
        return self._used

    def elapsed_ms(self, now: float) -> float:
        """Return the time over which the rate is taken: at least all windows but the current
        one."""
        size_ms = self.windows.size_ms
        elapsed = now - self._recent[0].start if self._recent else 0
        missing = self.windows.num - 1 - int(elapsed // size_ms)
        if missing > 0:
            elapsed += missing * size_ms
        return max(elapsed, 1)

    def per_second(self, now: float) -> float:
        return self.used(now) * 1000 / self.elapsed_ms(now)

    def throttle_ms(self, limit: float, now: float) -> float:
        """X = (O - T) / T * W is the wait after which the rate is back at the limit. It may exceed
        the span of the windows, but the usage is forgotten by then, as in Kafka."""
        used = self.used(now)
        elapsed = self.elapsed_ms(now)
        return max(used * 1000 / limit - elapsed, 0)

    def is_unused(self, now: float) -> bool:
        return self.used(now) == 0


class TokenBucket:
    """Tokens flow in at the rate of the limit. Below zero, the owner has to wait."""

    __slots__ = ("_at", "_limit", "_tokens", "windows")

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self._tokens: float | None = None  # full, until the first are taken
        self._at = 0.0
        self._limit = 0.0  # when it was last looked at

    def _refill(self, limit: float, now: float) -> float:
        most = limit * self.windows.span_ms / 1000
        if self._tokens is None:
            self._tokens = most
        else:
            self._tokens = min(most, self._tokens + limit * (now - self._at) / 1000)
        self._at = now
        self._limit = limit
        return self._tokens

    def record(self, amount: float, limit: float, now: float) -> None:
        self._tokens = self._refill(limit, now) - amount

    def throttle_ms(self, limit: float, now: float) -> float:
        tokens = self._refill(limit, now)
        return max(-tokens / limit * 1000, 0)

    def is_full(self, now: float) -> bool:
        """True if a new bucket would hold the same."""
        return self._refill(self._limit, now) >= self._limit * self.windows.span_ms / 1000


def in_reply(throttle_ms: float) -> int:
    """Return a wait as a reply carries it. Less than half a millisecond counts as none."""
    return min(round(throttle_ms), MAX_THROTTLE_MS)
