"""Timers as values: a transactional id says what fires when, the coordinator lets it fire.

All of them are lazy: one that is armed early enough is left alone, and looks when it fires whether
something is due. A producer that ends a thousand transactions a second moves no timer for it.
"""

from __future__ import annotations

from enum import StrEnum


class TimerKind(StrEnum):
    TIMEOUT = "timeout"
    """A transaction has been open for its timeout: it is aborted."""
    MARKERS = "markers"
    """A request has waited long enough for the markers of the transaction before."""
    IDLE = "idle"
    """A transaction was completed a while ago and nothing followed: that is stored now."""
    PERSIST_RETRY = "persist retry"
    """Repeats a failed write."""
