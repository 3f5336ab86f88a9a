"""How much may be counted for one question: records are read for it, one by one."""

from __future__ import annotations

import time


class CountBudget:
    def __init__(self, records: int, until: float) -> None:
        """`until`: by time.monotonic()."""
        self.total = records
        self._left = records
        self._until = until

    @property
    def is_used_up(self) -> bool:
        return self._left <= 0 or time.monotonic() > self._until

    def use(self, records: int) -> None:
        self._left -= records
