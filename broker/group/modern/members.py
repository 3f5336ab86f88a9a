"""A member of the consumer protocol: what it wants, what it has, what it shall have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import lru_cache, partial

from moldau.broker.group.events import Protocols
from moldau.broker.group.record import ConsumerMember, StoredGuest, StoredPlaces
from moldau.broker.group.topics import Place, by_topic

LEFT_FOR_A_WHILE = -2
"""The epoch of a static member whose process has stopped and is expected back."""
NOWHERE = -1


class MemberState(StrEnum):
    STABLE = "stable"
    UNREVOKED = "unrevoked"
    """It has not proved yet that it gave partitions back."""
    UNRELEASED = "unreleased"
    """It waits for partitions that others still have."""


class Guest:
    """What a classic member inside the group has beside the others."""

    __slots__ = ("asked_ms", "protocols", "session_timeout_ms", "synced")

    def __init__(self, session_timeout_ms: int, protocols: Protocols) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.asked_ms: int | None = None
        """When it was first sent REBALANCE_IN_PROGRESS since its last Join."""
        self.synced = True


class Member:
    """`assigned`, `revoking`, `target`: replaced, never changed, so that answers can keep them."""

    __slots__ = (
        "assigned",
        "assignor",
        "client_host",
        "client_id",
        "epoch",
        "guest",
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
        self.guest: Guest | None = None
        self.epoch = 0
        self.previous_epoch = 0
        self.state = MemberState.STABLE
        self.assigned: Mapping[Place, int] = {}
        """What it has or may take, with the epoch in which it was given (KIP-1251)."""
        self.revoking: Mapping[Place, int] = {}
        """What it has to give back."""
        self.target: frozenset[Place] = frozenset()
        self.rests_at = NOWHERE
        """The target's epoch, if it has nothing to ask for until there is another one."""
        self.shown_epoch = 0
        """The highest epoch in which it came: it is in no lower one."""
        self.sent_epoch: int | None = None
        """The epoch of the last answer to it; None: not known since the restart."""
        self.sent: Mapping[Place, int] | None = None
        """What the last answer to it assigned."""
        self.session_deadline_ms = 0
        self.session_timer_ms: int | None = None

    @property
    def is_away(self) -> bool:
        return self.epoch == LEFT_FOR_A_WHILE

    def has(self, place: Place) -> int | None:
        """The epoch in which it got this partition; None: it does not have it."""
        found = self.assigned.get(place)
        return self.revoking.get(place) if found is None else found

    def snapshot(self) -> Callable[[], ConsumerMember]:
        """What is stored of it as it is now, to be put together later: a target of a thousand
        members would hold the event loop otherwise."""
        guest = self.guest
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
            None if guest is None else StoredGuest(guest.session_timeout_ms, guest.protocols),
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
    assigned: Mapping[Place, int],
    revoking: Mapping[Place, int],
    target: frozenset[Place],
    guest: StoredGuest | None,
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
        guest,
    )


@lru_cache(maxsize=256)  # the members of a group mostly share one subscription
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
    member.assigned = _places(stored.assigned)
    member.revoking = _places(stored.revoking)
    member.target = frozenset(
        (one.topic_id, partition) for one in stored.target for partition in one.partitions
    )
    if stored.guest is not None:
        member.guest = Guest(stored.guest.session_timeout_ms, stored.guest.protocols)
    return member


def _assigned(assigned: Mapping[Place, int]) -> tuple[StoredPlaces, ...]:
    epochs = set(assigned.values())
    one_epoch = epochs.pop() if len(epochs) == 1 else None  # mostly, for one that has thousands
    return tuple(
        StoredPlaces(
            topic_id,
            tuple(numbers),
            (one_epoch,) * len(numbers)
            if one_epoch is not None
            else tuple([assigned[topic_id, number] for number in numbers]),
        )
        for topic_id, numbers in by_topic(assigned).items()
    )


def _target(
    target: frozenset[Place], assigned: Mapping[Place, int], stored: tuple[StoredPlaces, ...]
) -> tuple[StoredPlaces, ...]:
    """`stored`: what is assigned, mostly the same."""
    if len(target) == len(assigned) and assigned.keys() == target:
        return tuple(StoredPlaces(one.topic_id, one.partitions) for one in stored)
    return tuple(StoredPlaces(topic, tuple(mine)) for topic, mine in by_topic(target).items())


def _places(stored: Iterable[StoredPlaces]) -> dict[Place, int]:
    return {
        (one.topic_id, partition): epoch
        for one in stored
        for partition, epoch in zip(one.partitions, one.epochs, strict=True)
    }
