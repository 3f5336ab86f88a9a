"""When to warn that a certificate expires: at each of some distances once, then every day. Pure."""

from __future__ import annotations

from math import ceil

DAY = 86400.0
WARN_BEFORE = (30 * DAY, 14 * DAY, 7 * DAY, 1 * DAY)


class ExpiryWarnings:
    def __init__(self) -> None:
        self._last: float | None = None  # how much was left at the last warning

    def renewed(self) -> None:
        """There is another certificate."""
        self._last = None

    def is_due(self, expires_at: float, now: float) -> bool:
        """Whether to warn now. Call it as often as you like."""
        left = expires_at - now
        step = self._step(left)
        if step is None or (self._last is not None and step >= self._last):
            return False
        self._last = step
        return True

    @staticmethod
    def _step(left: float) -> float | None:
        """The last distance that was reached; behind the end, the day."""
        if left <= 0:
            return ceil(left / DAY) * DAY
        return min((step for step in WARN_BEFORE if left <= step), default=None)
