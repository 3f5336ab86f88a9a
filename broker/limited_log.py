"""Warnings that clients cause, and could cause without end: so many a minute of each kind, and then
only their number."""

from __future__ import annotations

import logging
import time

MOST, WINDOW_S = 10, 60.0


class LimitedLog:
    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._kinds: dict[str, _Kind] = {}

    def warning(self, kind: str, text: str, *arguments: object) -> None:
        """`kind`: of which there are few; not what a client sent."""
        known = self._kinds.setdefault(kind, _Kind())
        suppressed = known.take(time.monotonic())
        if suppressed is None:
            return
        if suppressed:
            text += " (and %d like it that were not logged)"
            arguments = (*arguments, suppressed)
        self._logger.warning(text, *arguments)


class _Kind:
    __slots__ = ("_left", "_suppressed", "_until")

    def __init__(self) -> None:
        self._until = 0.0
        self._left = 0
        self._suppressed = 0

    def take(self, now: float) -> int | None:
        """How many were suppressed before this one; None: this one is, too."""
        if now >= self._until:
            self._until = now + WINDOW_S
            self._left = MOST
        if not self._left:
            self._suppressed += 1
            return None
        self._left -= 1
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed
