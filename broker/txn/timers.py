"""Timers as values: a transactional id says which timer fires when, and the coordinator runs them.

All of them are lazy: a timer that is armed early enough is left alone, and checks when it fires
whether anything is due. A producer that ends a thousand transactions a second moves no timer.
"""

from __future__ import annotations

from enum import StrEnum


class TimerKind(StrEnum):
    TIMEOUT = "timeout"
    """A transaction has been open for its timeout: it is aborted."""
    MARKERS = "markers"
    """A request has waited long enough for the markers of the previous transaction."""
    IDLE = "idle"
    """A transaction was completed a while ago and nothing followed: store that now."""
    PERSIST_RETRY = "persist retry"
    """Repeats a failed write."""
