"""How long a failed login waits for its answer: longer with every failure of its address.

Clients with a wrong password retry at once, forever, and so does anyone who guesses passwords. The
table is bounded: addresses that have not failed for a while are forgotten, oldest first.
"""

from __future__ import annotations

FIRST_MS, MOST_MS = 100, 3000
FORGOTTEN_AFTER_MS = 60_000
MAX_ADDRESSES = 10_000


class FailureDelays:
    def __init__(self, most_addresses: int = MAX_ADDRESSES) -> None:
        self._most = most_addresses
        # Number of failures and time of the last one; the most recent come last.
        self._failures: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, host: str, now: int, least_ms: int) -> int:
        """Return the delay of this failure's answer in milliseconds; `least_ms` is that of the
        first."""
        count, last = self._failures.pop(host, (0, 0))
        if now - last >= FORGOTTEN_AFTER_MS:
            count = 0
        count += 1
        if len(self._failures) >= self._most:
            del self._failures[next(iter(self._failures))]
        self._failures[host] = (count, now)
        if count == 1:
            return least_ms
        return max(least_ms, min(FIRST_MS << min(count - 1, 10), MOST_MS))
