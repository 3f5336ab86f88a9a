"""Timers as values: a group says what fires when, the coordinator lets it fire."""

from __future__ import annotations

from enum import StrEnum


class TimerKind(StrEnum):
    SESSION = "session"
    """A member sent nothing for its session timeout. Lazy: a heartbeat only moves the deadline;
    the timer, when it fires, is armed again for the deadline it then finds."""
    PENDING_MEMBER = "pending member"
    """A client that got MEMBER_ID_REQUIRED did not join again with its id."""
    NEW_MEMBER = "new member"
    """The first Join of a new member has been parked for too long."""
    INITIAL_DELAY = "initial delay"
    """A group that was Empty has waited for more members."""
    JOIN = "join"
    """The rebalance timeout of PreparingRebalance."""
    SYNC = "sync"
    """The rebalance timeout of CompletingRebalance: members without a Sync are removed."""
    REVOKE = "revoke"
    """A member of the consumer protocol has not given partitions back in its rebalance timeout."""
    TARGET = "target"
    """The next target may be computed: the last one is `assignment.interval.ms` old."""
    PATTERNS = "patterns"
    """Expressions are matched again, with new topics or with all."""
    GUEST_JOIN = "guest join"
    """A classic member inside a group of the consumer protocol has not joined again. Lazy."""
    GUEST_SYNC = "guest sync"
    """... or has joined, and has not asked for its assignment."""
    PERSIST_RETRY = "persist retry"
    """Repeats a failed write."""
