"""The limits of groups, and the source of new ids: everything that is passed in from outside."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping

from msgspec import Struct

# A ULID has 48 bits of milliseconds and 80 random bits, in 26 characters that sort by time.
CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
LENGTH = 26
RANDOM_BYTES = 10
MAX_MS = (1 << 48) - 1
IDENTITY_PREFIX = "cgp_"


def ulid(now_ms: int, randomness: bytes) -> str:
    """Build the ULID of a point in time and ten random bytes."""
    if not 0 <= now_ms <= MAX_MS:
        raise ValueError(f"{now_ms} ms do not fit into the 48 bits of a ULID")
    if len(randomness) != RANDOM_BYTES:
        raise ValueError(f"a ULID takes {RANDOM_BYTES} random bytes, not {len(randomness)}")
    value = now_ms << 80 | int.from_bytes(randomness, "big")
    return "".join(CROCKFORD[value >> shift & 31] for shift in range(5 * LENGTH - 5, -1, -5))


def new_identity(now_ms: int) -> str:
    """Return the identity of a new consumer group."""
    return IDENTITY_PREFIX + ulid(now_ms, os.urandom(RANDOM_BYTES))


class ConsumerLimits(Struct, frozen=True):
    """The limits of one group of the consumer protocol: the broker's, or the group's own
    settings."""

    session_timeout_ms: int = 45_000
    """`consumer.session.timeout.ms`"""
    heartbeat_interval_ms: int = 5_000
    """`consumer.heartbeat.interval.ms`"""
    assignment_interval_ms: int = 1_000
    """`consumer.assignment.interval.ms`, KIP-1263: the minimum time between two targets."""


class ConsumerConfig(Struct, frozen=True):
    """The settings of the consumer protocol (KIP-848)."""

    enabled: bool = True
    """True if `group.coordinator.rebalance.protocols` names it."""
    limits: ConsumerLimits = ConsumerLimits()
    of_group: Mapping[str, ConsumerLimits] = {}
    """The limits of groups that have their own configuration."""
    max_size: int = 2**31 - 1
    """`group.consumer.max.size`"""
    assignors: tuple[str, ...] = ("uniform", "range")
    """`group.consumer.assignors`; the first is the default."""
    upgrades: bool = True
    downgrades: bool = True
    """`group.consumer.migration.policy`"""
    pattern_refresh_ms: int = 600_000
    """`group.consumer.regex.refresh.interval.ms`"""
    pattern_pause_ms: int = 10_000
    """New topics are matched with the patterns of a group no more often than this."""


class ShareConfig(Struct, frozen=True):
    """The settings of share groups (KIP-932)."""

    limits: ConsumerLimits = ConsumerLimits()
    """`group.share.session.timeout.ms`, `.heartbeat.interval.ms`, `.assignment.interval.ms`"""
    of_group: Mapping[str, ConsumerLimits] = {}
    """The limits of groups that have their own configuration."""
    max_size: int = 200
    """`group.share.max.size`"""
    assignor: str = "simple"
    """`group.share.assignors`"""


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
    disconnected would otherwise stay in the group forever."""
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
    consumer: ConsumerConfig = ConsumerConfig()
    share: ShareConfig = ShareConfig()


def random_member_id(prefix: str) -> str:
    """Kafka's form: `<client id or instance id>-<uuid>`."""
    return f"{prefix}-{uuid.uuid4()}"


class IdGenerator(Struct, frozen=True):
    """The source of new ids. Tests pass their own."""

    member_id: Callable[[str], str] = random_member_id
    """Takes the client id, or the instance id of a static member."""
    identity: Callable[[int], str] = new_identity
    """A group's identity `cgp_<ulid>`; takes the time in milliseconds."""
