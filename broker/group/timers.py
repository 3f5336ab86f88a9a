"""Timers as values: a group names what is to fire and when, the worker lets it fire."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class TimerKind(StrEnum):
    SESSION = "session"
    """A member was not heard of for its session timeout. Lazy: a heartbeat only moves the
    deadline; the timer, once fired, arms itself again for the deadline it then finds."""
    PENDING_MEMBER = "pending member"
    """A member that was told its id [79] did not come back with it."""
    NEW_MEMBER = "new member"
    """The parked Join of a new member became too old."""
    INITIAL_DELAY = "initial delay"
    """A group that was Empty has waited for more members to come."""
    JOIN = "join"
    """The rebalance timeout of PreparingRebalance."""
    SYNC = "sync"
    """The rebalance timeout of CompletingRebalance: who has not sent its Sync is removed."""
    PERSIST_RETRY = "persist retry"
    """Time to store once more what could not be stored."""


class TimerKey(NamedTuple):
    """What the worker keeps its timers by. Arming a key that is armed moves it."""

    group_id: str
    kind: TimerKind
    member_id: str = ""
    """For the timers of a member; empty for those of the group."""
