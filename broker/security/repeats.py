"""The first of many equal events in a period, and how many followed it. Pure: takes the time.

Bounded: clients choose what the events are about. Those that do not fit are counted together.
"""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")

MAX_KEYS = 5000


class Repeats(Generic[K]):
    def __init__(self, period_ms: int, max_keys: int = MAX_KEYS) -> None:
        self._period_ms = period_ms
        self._max_keys = max_keys
        self._since: dict[K, int] = {}  # when the first came, oldest first
        self._counts: dict[K, int] = {}  # of those behind it
        self._others = 0

    def is_first(self, key: K, now_ms: int) -> bool:
        """Is it the first of this kind in the period? Otherwise it is counted."""
        since = self._since.get(key)
        if since is not None and now_ms - since < self._period_ms:
            self._counts[key] = self._counts.get(key, 0) + 1
            return False
        if since is None and len(self._since) >= self._max_keys:
            self._others += 1
            return False
        if since is not None and key in self._counts:
            # Over, and not reported yet: it goes on with the count it has.
            self._counts[key] += 1
            return False
        self._since.pop(key, None)
        self._since[key] = now_ms
        return True

    def ended(self, now_ms: int) -> list[tuple[K | None, int]]:
        """What was repeated, and how often, of all periods that are over; None: all others."""
        over = []
        for key, since in self._since.items():
            if now_ms - since < self._period_ms:
                break
            over.append(key)
        found: list[tuple[K | None, int]] = []
        for key in over:
            del self._since[key]
            count = self._counts.pop(key, 0)
            if count:
                found.append((key, count))
        if over and self._others:
            found.append((None, self._others))
            self._others = 0
        return found
