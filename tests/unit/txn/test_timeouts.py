"""Transactions over their timeout, and ids that are not used any more."""

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.txn.transaction_data import TimerKind
from moldau.broker.txn.transitions import Identity
from tests.support.drivers.txn_driver import P0, P1, TIMEOUT_MS, TxnDriver, error, identity

DAY_MS = 24 * 3_600_000


def timed_out(*, restart: bool = False) -> tuple[TxnDriver, Identity]:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    t.sleep(TIMEOUT_MS - 1_000)
    t.add(who, P1)  # the deadline counts from the first partition
    if restart:
        t.restart()
    t.sleep(999)
    t.assert_state("Ongoing")
    t.sleep(1)
    t.assert_state("CompleteAbort")
    return t, who


@pytest.mark.parametrize("restart", [False, True])
def test_7_17_a_transaction_over_its_timeout_is_aborted(restart: bool) -> None:
    t, who = timed_out(restart=restart)
    (markers,) = t.all_markers
    assert not markers.commit
    assert markers.producer_epoch == who.producer_epoch + 1
    assert markers.partitions == (P0, P1)


@pytest.mark.parametrize("restart", [False, True])
def test_7_17_its_producer_is_fenced(restart: bool) -> None:
    t, who = timed_out(restart=restart)
    raised = (who.producer_id, who.producer_epoch + 1)
    assert error(t.call_add(who, P0)) is ErrorCode.PRODUCER_FENCED
    for commit in (True, False):
        assert error(t.call_end(who, commit=commit, version=4)) is ErrorCode.PRODUCER_FENCED
    assert error(t.call_end(who, commit=True)) is ErrorCode.INVALID_TXN_STATE
    assert t.end(who, commit=False) == raised
    assert t.init(who) == raised
    assert t.init(who) == raised
    t.add(Identity(*raised), P0)


def test_7_17_a_deadline_that_passed_while_the_coordinator_was_down() -> None:
    t = TxnDriver()
    t.hold_markers = True
    t.add(t.init(), P0)
    t.now += TIMEOUT_MS + 5_000
    t.restart()
    t.sleep(0)
    t.assert_state("PrepareAbort")


def test_a_timeout_at_the_last_epoch_leaves_no_epoch_to_give() -> None:
    t, who = TxnDriver.at_epoch(32_766)
    t.add(who, P0)
    t.hold_markers = True
    t.sleep(TIMEOUT_MS)
    abort, init = t.call_end(who, commit=False), t.call_init(who)
    assert error(t.call_end(who, commit=True)) is ErrorCode.INVALID_TXN_STATE
    assert abort.waits
    t.markers_done()
    new = identity(abort)
    assert new.producer_id != who.producer_id
    assert new.producer_epoch == 0
    assert identity(init) == new
    t.add(new, P0)


def test_init_after_a_timeout_at_the_last_epoch() -> None:
    t, who = TxnDriver.at_epoch(32_766)
    t.add(who, P0)
    t.sleep(TIMEOUT_MS)
    new = t.init(who)
    assert new.producer_id != who.producer_id
    assert new.producer_epoch == 0
    assert t.init(who) == new


def test_a_transaction_that_ends_in_time_is_left_alone() -> None:
    t = TxnDriver()
    who = t.init()
    for _ in range(5):
        t.add(who, P0)
        t.sleep(TIMEOUT_MS - 1)
        t.assert_state("Ongoing")
        who = t.end(who, commit=True)
    t.sleep(TIMEOUT_MS)
    assert all(markers.commit for markers in t.all_markers)


def test_a_shorter_timeout_from_the_next_init_on() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    who = t.end(who, commit=True)
    who = t.init(who, timeout_ms=1_000)
    t.add(who, P0)
    t.sleep(999)
    t.assert_state("Ongoing")
    t.sleep(1)
    t.assert_state("CompleteAbort")


def test_a_timeout_while_a_place_is_being_stored() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    t.hold_writes = t.hold_markers = True
    add = t.call_add(who, P1)
    t.sleep(TIMEOUT_MS)
    t.write_done()
    assert add.answer.error is ErrorCode.NONE
    t.write_done()
    (markers,) = t.markers
    assert not markers.commit
    assert markers.partitions == (P0, P1)


def test_a_timeout_while_the_commit_is_being_stored_comes_too_late() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    t.hold_writes = True
    commit = t.call_end(who, commit=True)
    t.sleep(TIMEOUT_MS)
    assert commit.waits
    t.write_done()
    assert commit.answer.error is ErrorCode.NONE
    t.sleep(10 * TIMEOUT_MS)
    assert [markers.commit for markers in t.all_markers] == [True]


def test_a_timeout_while_the_commit_is_being_stored_counts_if_that_fails() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    t.hold_writes = True
    commit = t.call_end(who, commit=True)
    t.sleep(TIMEOUT_MS)
    t.fail_write()
    assert error(commit) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    again = t.call_end(who, commit=True, version=4)
    t.write_done()
    assert error(again) is ErrorCode.PRODUCER_FENCED
    assert [markers.commit for markers in t.all_markers] == [False]


def test_a_timeout_is_retried_until_it_is_stored() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    t.hold_writes = True
    t.sleep(TIMEOUT_MS)
    for _ in range(3):
        assert t.writes["t"].record is not None
        assert t.writes["t"].record.state == "PrepareAbort"
        assert t.writes["t"].record.producer_epoch == who.producer_epoch + 1
        t.fail_write()
        assert not t.writes
        t.assert_state("Ongoing")
        t.sleep(t.config.persist_retry_ms)
    t.write_done()
    t.assert_state("CompleteAbort")
    assert len(t.all_markers) == 1


def test_complete_is_stored_after_an_idle_second() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    t.end(who, commit=True)
    writes = t.writes_asked
    t.sleep(999)
    assert t.record().state == "PrepareCommit"
    assert t.writes_asked == writes
    t.sleep(1)
    assert t.record().state == "CompleteCommit"
    assert t.record().partitions == ()
    assert t.writes_asked == writes + 1
    t.sleep(60_000)
    assert t.writes_asked == writes + 1


def test_an_idle_second_counts_from_the_last_transaction() -> None:
    t = TxnDriver()
    who = t.init()
    for _ in range(2):
        t.add(who, P0)
        who = t.end(who, commit=True)
        t.sleep(900)
    t.sleep(99)
    assert t.record().state == "PrepareCommit"
    t.sleep(1)
    assert t.record().state == "CompleteCommit"


@pytest.mark.parametrize("slow_store", [False, True])
def test_complete_is_not_stored_if_something_followed(slow_store: bool) -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    who = t.end(who, commit=True)
    t.sleep(900)
    t.hold_writes = slow_store
    t.call_add(who, P0)
    writes = t.writes_asked
    t.sleep(900)
    if slow_store:
        t.write_done()
    t.sleep(5_000)
    assert t.writes_asked == writes


def test_a_transaction_is_two_writes() -> None:
    t = TxnDriver()
    who = t.init()
    writes = t.writes_asked
    for _ in range(50):
        t.add(who, P0)
        t.sleep(30)
        who = t.end(who, commit=True)
        t.sleep(30)
    assert t.writes_asked == writes + 100
    t.sleep(2_000)
    assert t.writes_asked == writes + 101
    assert t.record().state == "CompleteCommit"


def test_a_busy_producer_moves_no_timers() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    who = t.end(who, commit=True)
    armed = dict(t.timers)
    for _ in range(100):
        t.add(who, P0)
        who = t.end(who, commit=True)
    assert t.timers == armed
    assert t.armed(TimerKind.TIMEOUT) == TIMEOUT_MS


@pytest.mark.parametrize("ended", [False, True])
def test_an_unused_id_is_removed(ended: bool) -> None:
    t = TxnDriver()
    who = t.init()
    if ended:
        t.add(who, P0)
        who = t.end(who, commit=True)
        t.sleep(5_000)
    unused_ms = 7 * DAY_MS - (5_000 if ended else 0)
    t.sleep(unused_ms - 1)
    t.run(t.transactions.expire(t.now))
    assert t.stored
    t.sleep(5_001)
    t.run(t.transactions.expire(t.now))
    assert not t.stored
    assert not t.transactions.by_id
    assert not t.timers
    t.assert_state(None)
    assert error(t.call_add(who, P0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    new = t.init()
    assert new.producer_id != who.producer_id
    assert t.add(new, P0) == 1


def test_an_id_in_a_transaction_is_never_removed() -> None:
    t = TxnDriver(max_timeout_ms=30 * DAY_MS)
    t.hold_markers = True
    who = t.init(timeout_ms=30 * DAY_MS)
    t.add(who, P0)
    t.sleep(8 * DAY_MS)
    t.run(t.transactions.expire(t.now))
    t.end(who, commit=True)
    t.sleep(8 * DAY_MS)
    t.run(t.transactions.expire(t.now))
    t.assert_state("PrepareCommit")


def test_init_while_the_id_is_being_removed() -> None:
    t = TxnDriver()
    old = t.init()
    t.sleep(8 * DAY_MS)
    t.hold_writes = True
    t.run(t.transactions.expire(t.now))
    init, late = t.call_init(), t.call_end(old, commit=False)
    t.write_done()
    t.write_done()
    assert identity(init).producer_id != old.producer_id
    assert error(late) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    t.assert_state("Empty")


def test_a_removal_that_failed() -> None:
    t = TxnDriver()
    who = t.init()
    t.sleep(8 * DAY_MS)
    t.hold_writes = True
    t.run(t.transactions.expire(t.now))
    t.fail_write(stored=True)
    t.assert_state("Empty")
    add = t.call_add(who, P0)
    t.write_done()
    assert add.answer.number == 1
    assert t.record().state == "Ongoing"
