"""What members may say of records, and what comes of it (9.10 to 9.12, 9.20)."""

from __future__ import annotations

import random

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.share import states
from moldau.broker.share.acknowledging import refusal
from moldau.broker.share.effects import Archived, Decided
from moldau.broker.share.limits import ShareLimits
from tests.unit.share.share_driver import ACCEPT, GAP, REJECT, RELEASE, RENEW, Driver

NOT_ACQUIRED = ErrorCode.INVALID_RECORD_STATE
MALFORMED = ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("batches", "reason"),
    [
        ([(5, 4, ACCEPT)], "the range 5-4 is reversed"),
        ([(0, 5, ACCEPT), (4, 6, ACCEPT)], "the range 4-6 overlaps the one before it"),
        ([(4, 6, ACCEPT), (0, 1, ACCEPT)], "the range 0-1 overlaps the one before it"),
        ([(0, 5, b"")], "the range 0-5 has no type of acknowledgement"),
        ([(0, 5, ACCEPT * 5)], "5 types for the 6 records 0-5"),
        ([(0, 5, ACCEPT * 7)], "7 types for the 6 records 0-5"),
        ([(0, 0, b"\5")], "5 is no type of acknowledgement"),
        ([(0, 1, b"\1\xff")], "255 is no type of acknowledgement"),
        ([(0, 0, RENEW)], "RENEW in a request that is not marked as a renewal"),
        ([(0, 5, ACCEPT), (6, 6, RELEASE)], None),
        ([(0, 5, ACCEPT), (5, 6, ACCEPT)], None),  # the partition refuses it, as in Kafka
        ([(0, 2, ACCEPT + RELEASE + GAP)], None),
    ],
)
def test_9_11_what_makes_no_sense(
    batches: list[tuple[int, int, bytes]], reason: str | None
) -> None:
    assert refusal(batches, may_renew=False) == reason


def test_9_12_renewals_need_their_flag() -> None:
    assert refusal([(0, 0, RENEW)], may_renew=True) is None


def test_9_11_records_that_the_member_does_not_have() -> None:
    group = Driver((0, 9), (10, 19))
    group.acquire("a", most=1)
    group.acquire("b", most=1)
    assert group.acknowledge((10, 10, ACCEPT)) is NOT_ACQUIRED
    assert group.acknowledge((9, 10, ACCEPT)) is NOT_ACQUIRED
    assert group.acknowledge((5, 5, ACCEPT)) is ErrorCode.NONE
    assert group.acknowledge((5, 5, ACCEPT)) is NOT_ACQUIRED
    assert group.acknowledge((0, 2, ACCEPT), (2, 4, ACCEPT)) is NOT_ACQUIRED
    assert group.acknowledge((19, 20, ACCEPT), member="b") is MALFORMED
    assert group.acknowledge((20, 20, ACCEPT)) is MALFORMED
    assert group.acknowledge((0, 4, ACCEPT)) is ErrorCode.NONE
    # Below the start: accepted, without effect.
    assert group.acknowledge((0, 5, ACCEPT)) is ErrorCode.NONE
    assert group.acknowledge((3, 6, REJECT)) is ErrorCode.NONE
    assert group.partition.start == 7


def test_9_11_all_ranges_or_none() -> None:
    group = Driver((0, 9), (10, 19))
    group.acquire("a", most=1)
    before = group.runs()
    assert group.acknowledge((0, 4, ACCEPT), (6, 10, ACCEPT)) is MALFORMED
    group.acquire("b", most=1)
    assert group.acknowledge((0, 4, ACCEPT), (6, 10, ACCEPT)) is NOT_ACQUIRED
    assert group.runs()[:1] == before


@pytest.mark.parametrize("is_one_by_one", [False, True])
def test_9_10_a_type_for_each_record(is_one_by_one: bool) -> None:
    rng = random.Random(7)
    group = Driver((0, 499), limits=ShareLimits(delivery_count=2))
    group.acquire()
    group.acknowledge((0, 0, RELEASE))
    group.acquire()  # 0 is at the limit now
    types = bytes([2, *rng.choices((0, 1, 2, 3), k=499)])
    batches = [(0, 499, types)]
    if is_one_by_one:
        batches = [(offset, offset, types[offset : offset + 1]) for offset in range(500)]
    assert group.partition.acknowledge("call", "a", batches, group.limits, 0) is None
    names = {0: "archiving", 1: "accepting", 2: "releasing", 3: "archiving"}
    seen = {o: name for first, last, name, _ in group.runs() for o in range(first, last + 1)}
    assert seen == {0: "archiving"} | {o: names[types[o]] for o in range(1, 500)}
    group.save()
    assert group.effects[-1] == Decided("call", ErrorCode.NONE)
    gone = {o for each in group.archived() for o in range(each.first, each.last + 1)}
    assert {o for o in range(1, 500) if types[o] == states.REJECT} <= gone
    left = {o for o in range(1, 500) if types[o] == states.RELEASE}
    ranges = group.acquire("b")
    assert {o for first, last, _ in ranges for o in range(first, last + 1)} == left
    assert {count for _, _, count in ranges} == {2}


def test_9_10_rejected_records_are_told_of_and_gaps_are_not() -> None:
    group = Driver((0, 9))
    group.acquire()
    assert group.acknowledge((0, 1, REJECT), (5, 6, GAP)) is ErrorCode.NONE
    assert group.archived() == [Archived(0, 1, 1, is_limit=False)]


def test_9_12_a_renewal_is_another_lock_duration() -> None:
    group = Driver((0, 9), limits=ShareLimits(lock_ms=1000))
    group.acquire()
    group.wait(600)
    assert group.acknowledge((2, 4, RENEW)) is ErrorCode.NONE
    assert group.partition.save_at() is None  # locks are memory
    group.wait(600)
    assert group.acquire("b") == [(0, 1, 2), (5, 9, 2)]
    assert group.acknowledge((2, 4, RENEW * 2 + ACCEPT)) is ErrorCode.NONE
    group.wait(999)
    assert group.runs()[1:3] == [(2, 3, "acquired", 1), (4, 4, "acknowledged", 0)]
    group.wait(1)
    assert group.runs()[1] == (2, 3, "available", 1)


def test_9_12_a_group_may_forbid_renewals() -> None:
    group = Driver((0, 9), limits=ShareLimits(may_renew=False))
    group.acquire()
    assert group.acknowledge((0, 1, ACCEPT), (2, 4, RENEW)) is NOT_ACQUIRED
    assert group.runs() == [(0, 9, "acquired", 1)]


def failing(group: Driver, *batches: tuple[int, int, bytes]) -> None:
    """Acknowledgements are on their way to a store that is away."""
    assert group.partition.acknowledge("call", "a", batches, group.limits, group.now) is None
    group.partition.begin_save()


def fail(group: Driver) -> None:
    group.partition.save_failed(ErrorCode.KAFKA_STORAGE_ERROR, group.limits, group.now)
    assert group.partition.take_effects() == [Decided("call", ErrorCode.KAFKA_STORAGE_ERROR)]


def test_9_20_a_write_that_failed_leaves_the_records_locked() -> None:
    group = Driver((0, 9))
    group.acquire()
    failing(group, (0, 1, ACCEPT), (2, 3, RELEASE), (4, 5, REJECT))
    assert group.acquire("b") == []
    fail(group)
    assert group.runs() == [(0, 9, "acquired", 1)]
    assert group.acknowledge((0, 9, ACCEPT)) is ErrorCode.NONE
    assert group.partition.start == 10


def test_9_20_a_lock_that_ended_meanwhile_does_not_come_back() -> None:
    limits = ShareLimits(lock_ms=1000, delivery_count=2)
    group = Driver((0, 9), limits=limits)
    group.acquire()
    group.acknowledge((8, 9, RELEASE))
    group.acquire()  # 8 and 9 are at the limit
    failing(group, (0, 1, ACCEPT), (8, 9, ACCEPT))
    group.wait(1000)
    assert group.runs() == [
        (0, 1, "accepting", 1),
        (2, 7, "available", 1),
        (8, 9, "accepting", 2),
    ]
    fail(group)
    assert group.runs() == [(0, 7, "available", 1), (8, 9, "archiving", 2)]
    # The store has just failed: it is tried again in a while, not at once.
    assert group.partition.save_at() == group.now + 1000
    assert group.acquire("b") == [(0, 7, 2)]
    group.save()
    assert group.runs() == [(0, 7, "acquired", 2), (8, 9, "archived", 0)]


def test_what_is_acknowledged_during_a_write_goes_into_the_next() -> None:
    group = Driver((0, 9))
    group.acquire()
    failing(group, (0, 1, ACCEPT))
    partition = group.partition
    assert partition.acknowledge("later", "a", [(2, 3, ACCEPT)], group.limits, 0) is None
    partition.saved()
    assert partition.take_effects() == [Decided("call", ErrorCode.NONE)]
    assert partition.start == 2
    assert group.runs()[0] == (2, 3, "accepting", 1)
    assert partition.save_at() == 0
    partition.begin_save()
    partition.saved()
    assert partition.take_effects() == [Decided("later", ErrorCode.NONE)]
    assert partition.start == 4
    assert partition.save_at() is None


def test_9_27_a_member_that_leaves_releases_what_it_has() -> None:
    group = Driver((0, 9), (10, 19))
    group.acquire("a", most=1)
    group.acquire("b", most=1)
    failing(group, (0, 1, ACCEPT))
    group.partition.leave("a", group.limits, group.now)
    assert group.runs() == [
        (0, 1, "accepting", 1),
        (2, 9, "available", 1),
        (10, 19, "acquired", 1),
    ]
    fail(group)
    assert group.acquire("c") == [(0, 9, 2)]


def test_9_28_a_worker_that_was_held_up_gives_members_their_time() -> None:
    group = Driver((0, 9), limits=ShareLimits(lock_ms=1000))
    group.acquire()
    group.now = 5_000
    group.partition.postpone(4_100)  # by what it was late, and some time to read requests
    group.wait(0)
    assert group.acknowledge((0, 9, ACCEPT)) is ErrorCode.NONE


def test_who_waits_is_answered_when_the_partition_is_given_up() -> None:
    group = Driver((0, 9))
    group.acquire()
    failing(group, (0, 1, ACCEPT))
    assert group.partition.acknowledge("later", "a", [(2, 3, ACCEPT)], group.limits, 0) is None
    group.partition.refuse_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    codes = [each.code for each in group.partition.take_effects() if isinstance(each, Decided)]
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2


def test_thousands_of_locks_leave_nothing_behind() -> None:
    group = Driver(*[(o, o) for o in range(5000)])
    for offset in range(5000):
        group.acquire(most=1)
        assert group.acknowledge((offset, offset, ACCEPT)) is ErrorCode.NONE
    locks = group.partition._locks
    assert len(locks) == 0
    assert len(locks._deadlines) < 200
    assert locks._by_member == {}
