"""When to warn about a certificate that expires: once at each of several distances, then daily."""

from __future__ import annotations

from math import ceil

DAY = 86400.0
WARN_BEFORE = (30 * DAY, 14 * DAY, 7 * DAY, 1 * DAY)


class ExpiryWarnings:
    def __init__(self) -> None:
        self._last: float | None = None  # how much was left at the last warning

    def renewed(self) -> None:
        """Start again with another certificate."""
        self._last = None

    def is_due(self, expires_at: float, now: float) -> bool:
        """Check whether to warn now. It may be called as often as you like."""
        left = expires_at - now
        step = self._step(left)
        if step is None or (self._last is not None and step >= self._last):
            return False
        self._last = step
        return True

    @staticmethod
    def _step(left: float) -> float | None:
        """Return the last distance that was reached; after expiry, the day."""
        if left <= 0:
            return ceil(left / DAY) * DAY
        return min((step for step in WARN_BEFORE if left <= step), default=None)
