"""Answers of leaders about the lag of groups: timestamps and counts of records. Pure.

An answer is kept while it stays true, so a group that stands still costs nothing. A question is
bounded; the starting point rotates so that every entry gets its turn.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

MAX_KEPT = 100_000

Key = TypeVar("Key", bound=Hashable)


class LagCache(Generic[Key]):
    def __init__(self, max_asked: int) -> None:
        """`max_asked`: the most keys in one question to a leader."""
        self.answers: dict[Key, int] = {}
        self._states: dict[Key, object] = {}
        self._max_asked = max_asked
        self._turn = 0

    def missing(self, wanted: Iterable[tuple[int, Key, object]]) -> dict[int, list[Key]]:
        """The keys to ask each leader for; drops answers that are stale or no longer wanted.

        `wanted`: leader, key, and the state in which an answer is true.
        """
        kept: dict[Key, int] = {}
        states: dict[Key, object] = {}
        missing: dict[int, dict[Key, None]] = {}
        for leader, key, state in wanted:
            states[key] = state
            if key not in self.answers or self._states[key] != state:
                missing.setdefault(leader, {})[key] = None
            elif len(kept) < MAX_KEPT:
                kept[key] = self.answers[key]
        self.answers, self._states = kept, states
        self._turn += 1
        return {leader: self._some(list(keys)) for leader, keys in missing.items()}

    def _some(self, keys: list[Key]) -> list[Key]:
        most = self._max_asked
        first = self._turn * (most if len(keys) > most else 1) % len(keys)
        return (keys[first:] + keys[:first])[:most]

    def add(self, asked: Sequence[Key], answers: Sequence[int | None]) -> None:
        """None: the leader had no time for it, and is asked again."""
        for key, answer in zip(asked, answers, strict=False):
            if answer is not None:
                self.answers[key] = answer
