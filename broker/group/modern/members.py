"""A member of the consumer protocol: its subscription, its partitions and its target."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import lru_cache, partial

from moldau.broker.group.events import Protocols
from moldau.broker.group.record import ConsumerMember, StoredClassicMember, StoredPartitions
from moldau.broker.group.topics import PartitionEpochs, TopicIdPartition, by_topic

LEFT_FOR_A_WHILE = -2
"""The epoch of a static member whose process has stopped and is expected back."""
NOWHERE = -1


class MemberState(StrEnum):
    STABLE = "stable"
    UNREVOKED = "unrevoked"
    """It has not yet proved that it gave partitions back."""
    UNRELEASED = "unreleased"
    """It waits for partitions that other members still hold."""


class ClassicMemberMetadata:
    """The additional data of a classic member. Kafka uses the same name."""

    __slots__ = ("asked_ms", "protocols", "session_timeout_ms", "synced")

    def __init__(self, session_timeout_ms: int, protocols: Protocols) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.asked_ms: int | None = None
        """When it was first sent REBALANCE_IN_PROGRESS since its last Join."""
        self.synced = True


class Member:
    """A member. `assigned`, `revoking` and `target` are replaced, never changed, so that answers
    can keep them."""

    __slots__ = (
        "assigned",
        "assignor",
        "classic",
        "client_host",
        "client_id",
        "epoch",
        "instance_id",
        "member_id",
        "names",
        "pattern",
        "previous_epoch",
        "rack_id",
        "rebalance_timeout_ms",
        "rests_at",
        "revoking",
        "sent",
        "sent_epoch",
        "session_deadline_ms",
        "session_timer_ms",
        "shown_epoch",
        "state",
        "target",
    )

    def __init__(self, member_id: str, instance_id: str | None = None) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.rack_id: str | None = None
        self.client_id = ""
        self.client_host = ""
        self.rebalance_timeout_ms = -1
        self.names: frozenset[str] = frozenset()
        self.pattern = ""
        self.assignor: str | None = None
        self.classic: ClassicMemberMetadata | None = None
        self.epoch = 0
        self.previous_epoch = 0
        self.state = MemberState.STABLE
        self.assigned: PartitionEpochs = {}
        """The partitions that it has or may take, with the epoch in which they were assigned
        (KIP-1251)."""
        self.revoking: PartitionEpochs = {}
        """The partitions that it has to give back."""
        self.target: frozenset[TopicIdPartition] = frozenset()
        self.rests_at = NOWHERE
        """The target's epoch, if it has nothing to ask for until there is another target."""
        self.shown_epoch = 0
        """The highest epoch that it has sent: it cannot be in a lower one."""
        self.sent_epoch: int | None = None
        """The epoch of the last answer to it; None if unknown since the restart."""
        self.sent: PartitionEpochs | None = None
        """The assignment in the last answer to it."""
        self.session_deadline_ms = 0
        self.session_timer_ms: int | None = None

    @property
    def is_away(self) -> bool:
        return self.epoch == LEFT_FOR_A_WHILE

    def has(self, partition: TopicIdPartition) -> int | None:
        """Return the epoch in which it got this partition, or None if it does not have it."""
        found = self.assigned.get(partition)
        return self.revoking.get(partition) if found is None else found

    def snapshot(self) -> Callable[[], ConsumerMember]:
        """Capture its current state, to be encoded later: encoding a thousand members at once would
        block the event loop."""
        classic = self.classic
        return partial(
            _record,
            self.member_id,
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.names,
            self.pattern,
            self.assignor,
            self.epoch,
            self.previous_epoch,
            self.state,
            self.assigned,
            self.revoking,
            self.target,
            None
            if classic is None
            else StoredClassicMember(classic.session_timeout_ms, classic.protocols),
        )


def _record(
    member_id: str,
    instance_id: str | None,
    rack_id: str | None,
    client_id: str,
    client_host: str,
    rebalance_timeout_ms: int,
    names: frozenset[str],
    pattern: str,
    assignor: str | None,
    epoch: int,
    previous_epoch: int,
    state: MemberState,
    assigned: PartitionEpochs,
    revoking: PartitionEpochs,
    target: frozenset[TopicIdPartition],
    classic: StoredClassicMember | None,
) -> ConsumerMember:
    stored = _assigned(assigned)
    return ConsumerMember(
        member_id,
        instance_id,
        rack_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        _in_order(names),
        pattern,
        assignor,
        epoch,
        previous_epoch,
        state,
        stored,
        _assigned(revoking),
        _target(target, assigned, stored),
        classic,
    )


@lru_cache(maxsize=256)  # the members of a group usually share one subscription
def _in_order(names: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(names))


def restored(stored: ConsumerMember) -> Member:
    member = Member(stored.member_id, stored.instance_id)
    member.rack_id = stored.rack_id
    member.client_id = stored.client_id
    member.client_host = stored.client_host
    member.rebalance_timeout_ms = stored.rebalance_timeout_ms
    member.names = frozenset(stored.names)
    member.pattern = stored.pattern
    member.assignor = stored.assignor
    member.epoch = stored.epoch
    member.previous_epoch = member.shown_epoch = stored.previous_epoch
    member.state = MemberState(stored.state)
    member.assigned = _epochs(stored.assigned)
    member.revoking = _epochs(stored.revoking)
    member.target = frozenset(
        (one.topic_id, partition) for one in stored.target for partition in one.partitions
    )
    if stored.classic is not None:
        member.classic = ClassicMemberMetadata(
            stored.classic.session_timeout_ms, stored.classic.protocols
        )
    return member


def _assigned(assigned: PartitionEpochs) -> tuple[StoredPartitions, ...]:
    epochs = set(assigned.values())
    one_epoch = epochs.pop() if len(epochs) == 1 else None  # the usual case
    return tuple(
        StoredPartitions(
            topic_id,
            tuple(numbers),
            (one_epoch,) * len(numbers)
            if one_epoch is not None
            else tuple([assigned[topic_id, number] for number in numbers]),
        )
        for topic_id, numbers in by_topic(assigned).items()
    )


def _target(
    target: frozenset[TopicIdPartition],
    assigned: PartitionEpochs,
    stored: tuple[StoredPartitions, ...],
) -> tuple[StoredPartitions, ...]:
    """Encode a target. `stored` is the encoded assignment, which is usually the same."""
    if len(target) == len(assigned) and assigned.keys() == target:
        return tuple(StoredPartitions(one.topic_id, one.partitions) for one in stored)
    return tuple(StoredPartitions(topic, tuple(mine)) for topic, mine in by_topic(target).items())


def _epochs(stored: Iterable[StoredPartitions]) -> dict[TopicIdPartition, int]:
    return {
        (one.topic_id, partition): epoch
        for one in stored
        for partition, epoch in zip(one.partitions, one.epochs, strict=True)
    }
