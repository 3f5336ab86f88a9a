"""The limits of groups, and the source of new ids: all that a group gets from outside."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from msgspec import Struct

from broker.group.ulid import new_identity


class GroupConfig(Struct, frozen=True):
    """The broker's group settings, under Kafka's names where Kafka has one."""

    min_session_timeout_ms: int = 6_000
    """`group.min.session.timeout.ms`"""
    max_session_timeout_ms: int = 1_800_000
    """`group.max.session.timeout.ms`"""
    initial_rebalance_delay_ms: int = 3_000
    """`group.initial.rebalance.delay.ms`"""
    max_size: int = 2**31 - 1
    """`group.max.size`"""
    new_member_join_timeout_ms: int = 300_000
    """How long the parked Join of a new member may wait. It cannot heartbeat yet, so a client that
    disconnected would otherwise stay in the group for ever."""
    offset_metadata_max_size: int = 4_096
    """`offset.metadata.max.bytes`, in characters as in Kafka"""
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    """`offsets.retention.minutes`"""
    persist_retry_ms: int = 5_000
    """Delay before a failed write or deletion is tried again."""
    late_timer_ms: int = 1_000
    """A timer that fires later than this was delayed by the coordinator, not by a member ..."""
    late_timer_grace_ms: int = 5_000
    """... so it is armed once more for this long: requests that queued up are read first."""


def random_member_id(prefix: str) -> str:
    """Kafka's form: `<client id or instance id>-<uuid>`."""
    return f"{prefix}-{uuid.uuid4()}"


class IdGenerator(Struct, frozen=True):
    """The source of new ids. Tests pass their own."""

    member_id: Callable[[str], str] = random_member_id
    """Takes the client id, or the instance id of a static member."""
    identity: Callable[[int], str] = new_identity
    """A group's identity `cgp_<ulid>`; takes the time in milliseconds."""
