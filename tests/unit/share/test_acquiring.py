"""Which records a member is handed (9.8, 9.13 to 9.15, 9.24 to 9.26)."""

from __future__ import annotations

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.share.effects import Archived
from moldau.broker.share.limits import AcquireMode, ShareLimits
from tests.unit.share.share_driver import ACCEPT, REJECT, RELEASE, Driver

EXACT = AcquireMode.RECORD_LIMIT


def test_9_8_whole_batches_until_there_are_enough() -> None:
    group = Driver((0, 3), (4, 9), (10, 14), (15, 19))
    assert group.acquire(most=5) == [(0, 9, 1)]
    assert group.acquire(most=1) == [(10, 14, 1)]
    assert group.acquire("b") == [(15, 19, 1)]
    assert group.acquire("b") == []


def test_9_8_the_first_batch_is_whole_however_large() -> None:
    group = Driver((0, 9_999), (10_000, 10_000))
    assert group.acquire(most=1) == [(0, 9_999, 1)]
    assert group.acquire(most=1) == []  # no room
    assert group.acknowledge((0, 7_999, ACCEPT)) is ErrorCode.NONE
    assert group.acquire(most=1) == []
    assert group.acknowledge((8_000, 8_000, ACCEPT)) is ErrorCode.NONE
    assert group.acquire(most=1) == [(10_000, 10_000, 1)]


def test_9_8_by_record_limit_never_more_than_asked() -> None:
    group = Driver((0, 9), (10, 29))
    assert group.acquire(most=3, mode=EXACT) == [(0, 2, 1)]
    assert group.acquire(most=3) == [(3, 9, 1)]
    assert group.acquire(most=15, mode=EXACT) == [(10, 24, 1)]
    assert group.acknowledge((3, 9, RELEASE)) is ErrorCode.NONE
    assert group.acquire(most=4, mode=EXACT) == [(3, 6, 2)]
    assert group.acquire(most=1) == [(7, 9, 2)]


def test_9_8_ranges_end_at_edges_of_batches_once_they_are_long_enough() -> None:
    batches = [(first, first + 3) for first in range(0, 20, 4)]
    group = Driver(*batches)
    assert group.acquire(batch_size=6) == [(0, 7, 1), (8, 15, 1), (16, 19, 1)]
    assert group.acknowledge((0, 19, RELEASE)) is ErrorCode.NONE
    assert group.acquire(batch_size=6) == [(0, 7, 2), (8, 15, 2), (16, 19, 2)]


def test_9_10_a_release_keeps_the_count_and_the_next_delivery_adds_one() -> None:
    group = Driver((0, 4), (5, 5))
    assert group.acquire(most=1) == [(0, 4, 1)]
    assert group.acknowledge((1, 2, RELEASE)) is ErrorCode.NONE
    assert group.acquire("b") == [(1, 2, 2), (5, 5, 1)]
    group.partition.leave("b", group.limits, group.now)
    assert group.acquire("c") == [(1, 2, 3), (5, 5, 2)]


def test_9_13_the_end_of_a_lock_keeps_the_count_and_archives_at_the_limit() -> None:
    group = Driver((0, 0), limits=ShareLimits(delivery_count=2, lock_ms=1000))
    assert group.acquire() == [(0, 0, 1)]
    group.wait(999)
    assert group.acquire("b") == []
    group.wait(1)
    assert group.acknowledge((0, 0, ACCEPT)) is ErrorCode.INVALID_RECORD_STATE
    assert group.acquire("b") == [(0, 0, 2)]
    group.wait(1000)
    assert group.expired() == 2
    assert group.runs() == [(0, 0, "archiving", 2)]
    assert group.acquire() == []
    assert group.partition.start == 0
    assert group.partition.save_at() == 0
    group.save()
    assert group.archived() == [Archived(0, 0, 2, is_limit=True)]
    assert (group.partition.start, group.partition.end) == (1, 1)


def test_9_14_fewer_and_fewer_together_until_the_poisoned_one_is_alone() -> None:
    poisoned = 37
    group = Driver((0, 499), limits=ShareLimits(delivery_count=6))
    sizes: list[int] = []
    done: set[int] = set()
    while ranges := group.acquire():
        offsets = [o for first, last, _ in ranges for o in range(first, last + 1)]
        sizes.append(len(offsets))
        # A reader that dies of the poisoned record accepts nothing that came with it.
        kind = RELEASE if poisoned in offsets else ACCEPT
        done |= set() if poisoned in offsets else set(offsets)
        for first, last, _ in ranges:
            assert group.acknowledge((first, last, kind)) is ErrorCode.NONE
    assert sizes[:5] == [500, 500, 500, 250, 125]
    assert set(sizes[5:130]) == {1}
    assert done == set(range(500)) - {poisoned}
    assert group.partition.start == 500
    assert group.partition.finished == 0


def test_9_14_the_poisoned_record_is_archived_after_the_last_attempt() -> None:
    group = Driver((0, 0), (1, 1), limits=ShareLimits(delivery_count=3))
    archived: list[Archived] = []
    for count in (1, 2, 3):
        assert group.acquire(most=1) == [(0, 0, count)]
        assert group.acknowledge((0, 0, RELEASE)) is ErrorCode.NONE
        archived += group.archived()
    assert archived == [Archived(0, 0, 3, is_limit=True)]
    assert group.acquire() == [(1, 1, 1)]


def test_9_15_a_full_window_gives_released_records_only() -> None:
    group = Driver(*[(o, o) for o in range(20)], limits=ShareLimits(max_records=10))
    assert group.acquire() == [(0, 9, 1)]
    assert group.partition.wanted(group.limits) is None
    assert group.acknowledge((5, 6, RELEASE), (8, 8, ACCEPT)) is ErrorCode.NONE
    assert group.partition.is_woken
    assert group.acquire("b") == [(5, 6, 2)]
    assert group.partition.wanted(group.limits) is None
    group.partition.is_woken = False
    assert group.acknowledge((0, 2, ACCEPT)) is ErrorCode.NONE
    assert group.partition.is_woken
    assert group.acquire("b") == [(10, 12, 1)]


def test_9_16_the_start_passes_what_is_finished_and_follows_the_log() -> None:
    group = Driver((0, 9), (10, 19))
    group.acquire()
    assert group.acknowledge((3, 5, ACCEPT)) is ErrorCode.NONE
    assert group.partition.start == 0
    assert group.partition.finished == 3
    assert group.acknowledge((0, 2, REJECT)) is ErrorCode.NONE
    assert group.partition.start == 6
    assert group.partition.finished == 0
    group.partition.log_start_moved(12, group.now)
    assert group.partition.start == 12
    assert group.acknowledge((6, 13, ACCEPT)) is ErrorCode.NONE
    assert group.partition.start == 14
    group.partition.log_start_moved(30, group.now)
    assert (group.partition.start, group.partition.end) == (30, 30)
    assert group.acknowledge((14, 19, ACCEPT)) is ErrorCode.NONE
    assert len(group.partition) == 0
    assert group.partition.next_deadline() is None


def test_9_24_released_records_and_new_ones_behind_locked_ones_come_together() -> None:
    group = Driver(*[(o, o + 9) for o in range(0, 1200, 10)])
    group.acquire(most=1000)
    assert group.acknowledge((40, 49, RELEASE)) is ErrorCode.NONE
    assert group.acquire("b", most=20) == [(40, 49, 2), (1000, 1009, 1)]


def test_9_25_no_range_holds_an_offset_without_a_record() -> None:
    far = 100_000
    group = Driver((0, 4), (far, far + 4), (far + 10, far + 14), limits=ShareLimits(max_records=12))
    assert group.acquire() == [(0, 4, 1), (far, far + 4, 1), (far + 10, far + 14, 1)]
    assert len(group.partition) == 15
    assert group.acknowledge((0, far + 4, ACCEPT)) is ErrorCode.INVALID_RECORD_STATE
    assert group.acknowledge((0, 4, RELEASE), (far, far + 4, RELEASE)) is ErrorCode.NONE
    assert group.acquire("b") == [(0, 4, 2), (far, far + 4, 2)]
    assert group.acknowledge((0, 4, ACCEPT), member="b") is ErrorCode.NONE
    assert group.partition.start == far


def test_9_17_what_compaction_took_is_over_when_it_is_read_again() -> None:
    group = Driver((0, 4), (5, 9), (10, 14))
    group.acquire()
    group.batches = [(0, 4, True), (10, 14, True)]
    assert group.acknowledge((0, 14, RELEASE)) is ErrorCode.NONE
    assert group.acquire() == [(0, 4, 2), (10, 14, 2)]
    assert group.acknowledge((0, 4, ACCEPT), (10, 14, ACCEPT)) is ErrorCode.NONE
    assert group.partition.start == 15


def test_9_17_control_batches_are_passed() -> None:
    group = Driver((0, 4))
    group.batches += [(5, 5, False), (6, 9, True), (10, 10, False)]
    assert group.acquire(most=1) == [(0, 4, 1)]
    assert group.acquire(most=1) == [(6, 9, 1)]
    assert group.acknowledge((0, 4, ACCEPT)) is ErrorCode.NONE
    assert group.partition.start == 6
    assert group.acknowledge((6, 9, ACCEPT)) is ErrorCode.NONE
    assert group.acquire() == []
    assert group.partition.start == 11


def test_9_26_released_records_of_a_transaction_that_was_aborted_are_over() -> None:
    """The group reads committed records from now on."""
    group = Driver((0, 4), (5, 9))
    group.acquire()
    assert group.acknowledge((0, 9, RELEASE)) is ErrorCode.NONE
    group.batches = [(0, 4, False), (5, 9, True)]
    assert group.acquire() == [(5, 9, 2)]
    assert group.partition.start == 5


def test_9_22_a_lowered_limit_archives_what_is_at_it() -> None:
    group = Driver((0, 0), (1, 1), limits=ShareLimits(delivery_count=9))
    for _ in range(3):
        group.acquire(most=1)
        group.acknowledge((0, 0, RELEASE))
    group.limits = ShareLimits(delivery_count=3)
    assert group.acquire() == [(1, 1, 1)]
    assert group.runs() == [(0, 0, "archiving", 3), (1, 1, "acquired", 1)]
    group.save()
    assert group.partition.start == 1


@pytest.mark.parametrize("mode", AcquireMode)
def test_nothing_is_acquired_before_the_start_is_stored(mode: AcquireMode) -> None:
    """9.7: after a crash, `latest` would be later."""
    group = Driver((5, 9), start=7)
    fresh = type(group.partition)()
    group.partition = fresh
    assert group.acquire(mode=mode) == []
    fresh.resolve(7)
    assert group.acquire(mode=mode) == []
    stored = fresh.begin_save()
    assert group.acquire(mode=mode) == []
    fresh.save_failed(ErrorCode.KAFKA_STORAGE_ERROR, group.limits, 0)
    assert group.acquire(mode=mode) == []
    assert fresh.save_at() is not None
    fresh.begin_save()
    fresh.saved()
    assert group.acquire(mode=mode) == [(7, 9, 1)]
    group.partition = type(fresh)(stored)
    assert group.acquire(mode=mode) == [(7, 9, 1)]


def test_9_19_after_the_death_of_a_leader() -> None:
    group = Driver((0, 9))
    group.acquire()
    group.acknowledge((4, 5, RELEASE))
    group.acquire("b")
    group.acknowledge((0, 1, ACCEPT), (3, 3, REJECT))
    group.restart()
    # What was acquired comes at once, with the count from before its delivery.
    assert group.acquire("c") == [(2, 2, 1), (4, 5, 2), (6, 9, 1)]
    assert group.partition.start == 2
