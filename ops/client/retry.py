"""Waiting between attempts."""

from __future__ import annotations

import time

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0


class Backoff:
    """Pauses that double, until there was no progress for `patience_s` seconds."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self.progress()

    def progress(self) -> None:
        """Begin again: with short pauses and all patience."""
        self._deadline = time.monotonic() + self.patience_s
        self._pause = FIRST_PAUSE_S

    @property
    def is_exhausted(self) -> bool:
        return time.monotonic() > self._deadline

    def wait(self) -> bool:
        """Pause before the next attempt. False, at once, when patience is exhausted."""
        if time.monotonic() + self._pause > self._deadline:
            return False
        time.sleep(self._pause)
        self._pause = min(self._pause * 2, LONGEST_PAUSE_S)
        return True
