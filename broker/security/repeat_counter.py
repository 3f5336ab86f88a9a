"""Reports the first of many equal events in a period, and counts the others. Pure: takes the time.

The table is bounded, as clients choose what the events are about. Each client has a share of it, so
that none can hide the events of another; those that do not fit are counted together.
"""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")

MAX_KEYS, MAX_OF_ONE = 2000, 100


class RepeatCounter(Generic[K]):
    def __init__(self, period_ms: int) -> None:
        self._period_ms = period_ms
        self._begun: dict[K, tuple[int, str]] = {}  # when it began and who caused it, oldest first
        self._counts: dict[K, int] = {}  # the events after the first
        self._of: dict[str, int] = {}  # how many kinds of events each client has
        self._others = 0
        self._others_since = 0

    def is_first(self, key: K, whose: str, now_ms: int) -> bool:
        """True if this is the first event of its kind in the period. Otherwise it is counted."""
        if key in self._begun:
            self._counts[key] = self._counts.get(key, 0) + 1
            return False
        if len(self._begun) >= MAX_KEYS or self._of.get(whose, 0) >= MAX_OF_ONE:
            if not self._others:
                self._others_since = now_ms
            self._others += 1
            return False
        self._begun[key] = (now_ms, whose)
        self._of[whose] = self._of.get(whose, 0) + 1
        return True

    def ended(self, now_ms: int) -> list[tuple[K | None, int]]:
        """Return the repeated events of all periods that have ended, with counts; None stands for
        others."""
        over = []
        for key, (since, whose) in self._begun.items():
            if now_ms - since < self._period_ms:
                break
            over.append((key, whose))
        found: list[tuple[K | None, int]] = []
        for key, whose in over:
            del self._begun[key]
            self._of[whose] -= 1
            if not self._of[whose]:
                del self._of[whose]
            count = self._counts.pop(key, 0)
            if count:
                found.append((key, count))
        if self._others and now_ms - self._others_since >= self._period_ms:
            found.append((None, self._others))
            self._others = 0
        return found
