"""What every state machine asks of the runtime (effects), and what it hears back (events).

The runtime runs effects in their order. A `Reply` that promises something durable is emitted only
after the `Persisted` event for it, so the runtime never has to hold one back. Each room adds its
own: what it persists, and what only it asks for.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct

from moldau.broker.errors import ErrorCode

A = TypeVar("A")


class TimerKey(NamedTuple):
    """Identifies a timer. Arming a key that is armed moves it."""

    name: str
    """The group id or transactional id."""
    kind: StrEnum
    member_id: str = ""
    """For the timers of a member; empty for those of the machine itself."""


# --- effects ---


class Reply(Struct, Generic[A], frozen=True):
    """Answer the request with this reply handle; exactly one for each request."""

    call: object
    answer: A


class Persist(Struct, frozen=True):
    """Store the machine, then send it `Persisted(revision, …)`, whatever the outcome.

    A machine has at most one write in flight. Revisions grow with every write,
    across restarts too, so the store can refuse a write that arrives late. The outcome is not sent
    to a machine that was given up or reloaded meanwhile: it may use the same revisions again.
    """

    name: str
    revision: int


class ArmTimer(Struct, frozen=True):
    """Send `TimerFired(key)` at that time."""

    key: TimerKey
    at_ms: int


class CancelTimer(Struct, frozen=True):
    """Only sent for a key that is armed."""

    key: TimerKey


class Failed(Struct, frozen=True):
    """An exception left the machine half changed: refuse what waits, and reload it."""

    name: str
    defect: Exception


# --- events ---


class Persisted(Struct, frozen=True):
    """The outcome of the `Persist` effect with this revision.

    `error` is what clients that wait for the write get: COORDINATOR_NOT_AVAILABLE when it failed or
    its outcome is unknown.
    """

    revision: int
    error: ErrorCode = ErrorCode.NONE


class TimerFired(Struct, frozen=True):
    """An armed timer is due. One that was cancelled or moved in the meantime is ignored."""

    key: TimerKey
