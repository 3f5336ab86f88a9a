"""The first of many equal events in a period, and how many followed it. Pure: takes the time.

Bounded: clients choose what the events are about. Each has a share of them, so that none can hide
what another does; those that do not fit are counted together.
"""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")

MAX_KEYS, MAX_OF_ONE = 2000, 100


class RepeatCounter(Generic[K]):
    def __init__(self, period_ms: int) -> None:
        self._period_ms = period_ms
        self._begun: dict[K, tuple[int, str]] = {}  # when, and of whom: the oldest is first
        self._counts: dict[K, int] = {}  # of those behind the first
        self._of: dict[str, int] = {}  # how many of the kinds are of whom
        self._others = 0
        self._others_since = 0

    def is_first(self, key: K, whose: str, now_ms: int) -> bool:
        """Is it the first of this kind since the last period was over? Otherwise it is counted."""
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
        """What was repeated, and how often, of all periods that are over; None: all others."""
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
