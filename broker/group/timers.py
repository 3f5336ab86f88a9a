"""Timers as values: a group says which timer fires when, and the coordinator runs them."""

from __future__ import annotations

from enum import StrEnum


class TimerKind(StrEnum):
    SESSION = "session"
    """A member sent nothing for its session timeout. This timer is lazy: a heartbeat only moves the
    deadline, and the timer is armed again for the deadline that it finds when it fires."""
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
    """A member of the consumer protocol has not revoked partitions within its rebalance timeout."""
    TARGET = "target"
    """The next target may be computed: the last one is `assignment.interval.ms` old."""
    PATTERNS = "patterns"
    """Patterns are matched again, with new topics or with all."""
    CLASSIC_JOIN = "classic join"
    """A classic member of a group of the consumer protocol has not joined again. Lazy."""
    CLASSIC_SYNC = "classic sync"
    """Such a member has joined, but has not asked for its assignment."""
    PERSIST_RETRY = "persist retry"
    """Repeats a failed write."""
