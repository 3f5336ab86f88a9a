"""The members of a group of the consumer protocol: their partitions and targets, and their
subscriptions, counted: names, patterns, and the topics that they match.

The topic hash sums a hash of the name, id and number of partitions of every subscribed topic. It is
stored, so that loading the group can tell whether anything has changed in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import lru_cache, partial
from hashlib import blake2b

from moldau.broker.group.events import Protocols
from moldau.broker.group.record import ConsumerMember, StoredClassicMember, StoredPartitions
from moldau.broker.group.topics import (
    PartitionEpochs,
    TopicFacts,
    TopicIdPartition,
    TopicLookup,
    by_topic,
)

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


_MASK = (1 << 63) - 1


def _hash(topic: TopicFacts) -> int:
    data = b"%b\0%b\0%d" % (topic.name.encode(), topic.topic_id, topic.partitions)
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big") & _MASK


class Pattern:
    """A pattern in use."""

    __slots__ = ("members", "topics")

    def __init__(self, topics: frozenset[str] | None = None) -> None:
        self.topics = topics
        """None while it is not resolved: it matches no topics yet."""
        self.members = 0


class Subscriptions:
    def __init__(self, topics: TopicLookup) -> None:
        self._topics = topics
        self._names: Counter[str] = Counter()
        self._seen: dict[str, int] = {}  # the hashes of subscribed topics that exist
        self._shared: dict[frozenset[str], frozenset[str]] = {}
        self.patterns: dict[str, Pattern] = {}
        self.topic_hash = 0

    def shared(self, names: Iterable[str]) -> frozenset[str]:
        """Return one object for equal subscriptions: a thousand members usually have the same."""
        wanted = frozenset(names)
        if len(self._shared) > 256:
            self._shared.clear()
        return self._shared.setdefault(wanted, wanted)

    # --- members ---

    def add(self, member: Member) -> None:
        names = self._names
        fresh = [name for name in member.names if not names[name]]
        names.update(member.names)
        if member.pattern:
            pattern = self.patterns.setdefault(member.pattern, Pattern())
            pattern.members += 1
            if pattern.members == 1 and pattern.topics:
                fresh += pattern.topics
        self.rehash(fresh)

    def remove(self, member: Member) -> None:
        names = self._names
        stale = []
        for name in member.names:
            names[name] -= 1
            if not names[name]:
                del names[name]
                stale.append(name)
        if member.pattern:
            pattern = self.patterns[member.pattern]
            pattern.members -= 1
            if not pattern.members:
                del self.patterns[member.pattern]
                stale += pattern.topics or ()
        self.rehash(stale)

    def topics_of(self, member: Member) -> frozenset[str]:
        """Return all names, including those of topics that do not exist."""
        topics = self.patterns[member.pattern].topics if member.pattern else None
        return member.names | topics if topics else member.names

    def has(self, member: Member, topic_id: bytes) -> bool:
        """Check whether the member subscribes to the topic with this id."""
        topic = self._topics.by_id(topic_id)
        if topic is None:
            return False
        if topic.name in member.names:
            return True
        topics = self.patterns[member.pattern].topics if member.pattern else None
        return topics is not None and topic.name in topics

    # --- all together ---

    def all(self) -> frozenset[str]:
        found = set(self._names)
        for pattern in self.patterns.values():
            found.update(pattern.topics or ())
        return frozenset(found)

    def __contains__(self, name: str) -> bool:
        if self._names.get(name):
            return True
        return any(name in (pattern.topics or ()) for pattern in self.patterns.values())

    def facts(self) -> list[TopicFacts]:
        """Return the subscribed topics that exist, in order."""
        found = (self._topics.by_name(name) for name in sorted(self._seen))
        return [topic for topic in found if topic is not None]

    def rehash(self, names: Iterable[str]) -> bool:
        """Look at these topics again. Returns True if anything about them has changed."""
        before = self.topic_hash
        for name in names:
            old = self._seen.pop(name, 0)
            topic = self._topics.by_name(name) if name in self else None
            new = 0 if topic is None else _hash(topic)
            if topic is not None:
                self._seen[name] = new
            self.topic_hash = (self.topic_hash + new - old) & _MASK
        return self.topic_hash != before

    def match(self, pattern: str, topics: frozenset[str], *, of_all: bool) -> bool:
        """Set the topics that a pattern matches. Returns True if that changes anything."""
        known = self.patterns.get(pattern)
        if known is None:
            return False  # no member uses it any longer
        before = known.topics
        known.topics = topics if of_all or before is None else before | topics
        if known.topics == before:
            known.topics = before
            return False
        self.rehash(known.topics ^ (before or frozenset()))
        return bool(known.topics) or bool(before)
