"""Persist, then reply: nothing is promised that is not stored, and nothing by a failed write."""

from typing import Any

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.machine import Persisted
from moldau.broker.txn.transitions import Identity
from tests.support.drivers.txn_driver import GROUPS, P0, P1, P2, TxnDriver, error, identity
from tests.support.drivers.txn_world import Call

FAILED = ErrorCode.COORDINATOR_NOT_AVAILABLE


def ongoing() -> tuple[TxnDriver, Identity]:
    """An open transaction with P0 in it; from now on the test ends writes and markers."""
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    t.hold_writes = t.hold_markers = True
    return t, who


def test_init_is_answered_when_it_is_stored() -> None:
    t = TxnDriver()
    t.hold_writes = True
    call = t.call_init()
    assert call.waits
    t.assert_state(None)
    t.write_done()
    assert identity(call) == (1_001, 0)
    t.assert_state("Empty")


def test_end_is_answered_when_it_is_stored_and_then_the_markers_go_out() -> None:
    t, who = ongoing()
    call = t.call_end(who, commit=True)
    assert call.waits
    assert not t.markers
    t.assert_state("Ongoing")
    t.write_done()
    assert call.answer.error is ErrorCode.NONE
    assert len(t.markers) == 1


def test_a_place_counts_when_it_is_stored() -> None:
    t, who = ongoing()
    first = t.call_add(who, P1)
    again = t.call_add(who, P1)  # the same, while it is being stored
    verify = t.call_verify(who, P1)
    assert first.waits
    assert again.waits
    assert verify.waits
    t.write_done()
    assert first.answer.number == again.answer.number == 1
    assert verify.answer.missing == frozenset()
    assert not t.writes  # the second needed none


def test_a_place_that_is_stored_needs_no_wait() -> None:
    t, who = ongoing()
    t.call_add(who, P1)
    assert t.call_add(who, P0).answer.number == 1
    assert t.call_verify(who, P0).answer.number == 1


def test_another_producer_is_refused_whatever_is_stored() -> None:
    t, who = ongoing()
    t.call_add(who, P1)
    calls = [
        t.call_add(Identity(who.producer_id, who.producer_epoch + 1), P0),
        t.call_verify(Identity(who.producer_id + 1, who.producer_epoch), P0),
    ]
    t.write_done()
    assert [error(call) for call in calls] == [
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ]


def test_adds_share_the_next_write() -> None:
    t, who = ongoing()
    calls = [t.call_add(who, P1)]
    calls += [t.call_add(who, partition) for partition in (P2, GROUPS, P2)]
    fenced = t.call_add(Identity(who.producer_id, who.producer_epoch + 7), P2)
    verify = t.call_verify(who, GROUPS)
    asked = t.writes_asked
    t.write_done()
    assert [call.waits for call in calls] == [False, True, True, True]
    assert error(fenced) is ErrorCode.PRODUCER_FENCED
    assert verify.waits
    t.write_done()
    assert all(call.answer.number == 1 for call in calls)
    assert verify.answer.missing == frozenset()
    assert t.writes_asked == asked + 1
    assert t.record().partitions == (P0, P1, P2, GROUPS)


def test_end_waits_for_the_places_that_came_before_it() -> None:
    t, who = ongoing()
    first, second = t.call_add(who, P1), t.call_add(who, P2)
    end = t.call_end(who, commit=True)
    late = t.call_add(who, GROUPS)
    t.write_done()
    t.write_done()
    assert first.answer.error is second.answer.error is ErrorCode.NONE
    assert end.waits
    t.write_done()
    assert end.answer.error is ErrorCode.NONE
    assert error(late) is ErrorCode.PRODUCER_FENCED
    assert t.markers[0].partitions == (P0, P1, P2)


def test_a_topic_created_again_is_another_place() -> None:
    t, who = ongoing()
    t.hold_writes = False
    again = P0._replace(topic_id=b"x" * 16)
    assert t.call_verify(who, again).answer.missing == {again}
    t.add(who, again)
    assert t.record().partitions == (P0, again)


def test_an_add_of_nothing_writes_nothing() -> None:
    t = TxnDriver()
    who = t.init()
    asked = t.writes_asked
    assert t.call_add(who).answer.error is ErrorCode.NONE
    t.assert_state("Empty")
    assert t.writes_asked == asked


# --- writes that fail ---


@pytest.mark.parametrize("stored", [False, True])
def test_an_init_that_failed(stored: bool) -> None:
    t = TxnDriver()
    t.hold_writes = True
    call = t.call_init()
    t.fail_write(stored=stored)
    assert error(call) is FAILED
    t.assert_state(None)
    again = t.call_init()
    t.write_done()  # the driver refuses an old revision
    assert identity(again).producer_epoch == 0
    assert t.record().producer_id == identity(again).producer_id


def test_what_an_init_that_failed_may_have_left_is_removed() -> None:
    t = TxnDriver()
    t.hold_writes = True
    t.call_init()
    t.fail_write(stored=True)
    t.sleep(t.config.persist_retry_ms)
    t.fail_write()
    t.sleep(t.config.persist_retry_ms)
    t.write_done()
    assert not t.stored
    assert not t.transactions.by_id
    assert not t.timers


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("version", [4, 5])
def test_an_end_that_failed_is_undone_and_can_be_repeated(stored: bool, version: int) -> None:
    t, who = ongoing()
    call = t.call_end(who, commit=True, version=version)
    t.fail_write(stored=stored)
    assert error(call) is FAILED
    assert not t.markers
    t.assert_state("Ongoing")
    again = t.call_end(who, commit=True, version=version)
    t.write_done()
    assert again.answer.error is ErrorCode.NONE
    assert again.answer.producer_epoch == who.producer_epoch + (version == 5)
    assert [markers.commit for markers in t.all_markers] == [True]


@pytest.mark.parametrize("version", [4, 5])
def test_a_commit_that_failed_can_still_be_aborted(version: int) -> None:
    t, who = ongoing()
    t.call_end(who, commit=True, version=version)
    t.fail_write(stored=True)
    abort = t.call_end(who, commit=False, version=version)
    t.write_done()
    assert abort.answer.error is ErrorCode.NONE
    t.restart()
    assert {markers.commit for markers in t.all_markers} == {False}


@pytest.mark.parametrize("version", [4, 5])
def test_a_commit_that_failed_but_was_stored_is_one_after_a_restart(version: int) -> None:
    t, who = ongoing()
    t.call_end(who, commit=True, version=version)
    t.fail_write(stored=True)
    t.restart()
    assert error(t.call_end(who, commit=False, version=version)) is ErrorCode.INVALID_TXN_STATE
    again = t.call_end(who, commit=True, version=version)
    assert again.answer.error is ErrorCode.NONE
    assert {markers.commit for markers in t.all_markers} == {True}


@pytest.mark.parametrize("stored", [False, True])
def test_an_add_that_failed(stored: bool) -> None:
    t = TxnDriver()
    who = t.init()
    t.hold_writes = t.hold_markers = True
    call = t.call_add(who, P0)
    t.fail_write(stored=stored)
    assert error(call) is FAILED
    t.assert_state("Empty")
    again = t.call_add(who, P1)
    t.write_done()
    assert again.answer.number == 1
    assert t.record().partitions == (P1,)


def test_an_add_that_failed_but_was_stored_times_out_after_a_restart() -> None:
    t = TxnDriver()
    who = t.init()
    t.hold_writes = True
    t.call_add(who, P0)
    t.fail_write(stored=True)
    t.hold_writes = False
    t.restart()
    t.assert_state("Ongoing")
    t.sleep(60_000)
    t.assert_state("CompleteAbort")


def test_an_init_that_could_not_abort() -> None:
    t, who = ongoing()
    init = t.call_init()
    t.fail_write()
    assert error(init) is FAILED
    t.assert_state("Ongoing")
    commit = t.call_end(who, commit=True)  # the producer before is not fenced
    t.write_done()
    assert commit.answer.error is ErrorCode.NONE


def test_an_init_that_aborted_and_could_not_go_on() -> None:
    t, who = ongoing()
    init = t.call_init()
    t.write_done()
    t.markers_done()
    t.fail_write()
    assert error(init) is FAILED
    t.assert_state("CompleteAbort")
    assert error(t.call_end(who, commit=True)) is ErrorCode.PRODUCER_FENCED
    again = t.call_init()
    t.write_done()
    assert identity(again).producer_epoch == who.producer_epoch + 2


def test_whoever_waits_for_a_write_that_fails_is_not_kept_waiting() -> None:
    t, who = ongoing()
    calls: list[Call[Any]] = [t.call_add(who, P1), t.call_add(who, P2)]
    calls.append(t.call_end(who, commit=True))
    t.fail_write()
    assert [error(call) for call in calls] == [FAILED] * 3
    assert not t.writes
    t.assert_state("Ongoing")


def test_what_is_in_doubt_is_stored_again() -> None:
    t, who = ongoing()
    t.call_end(who, commit=True)
    t.fail_write(stored=True)
    t.sleep(t.config.persist_retry_ms - 1)
    assert not t.writes
    t.sleep(1)
    t.write_done()
    assert t.record().state == "Ongoing"
    assert t.record().producer_epoch == who.producer_epoch
    assert not t.markers
    t.sleep(10_000)
    assert not t.writes


def test_complete_that_could_not_be_stored_is_stored_later() -> None:
    t, who = ongoing()
    t.call_end(who, commit=True)
    t.write_done()
    t.markers_done()
    t.sleep(t.config.complete_after_ms)
    t.fail_write()
    t.assert_state("CompleteCommit")
    t.sleep(t.config.persist_retry_ms)
    t.write_done()
    assert t.record().state == "CompleteCommit"
    assert len(t.all_markers) == 1


def test_an_outcome_that_is_not_awaited_is_ignored() -> None:
    t, who = ongoing()
    t.call_end(who, commit=True)
    write = t.writes["t"]
    t.write_done()
    t.writes["t"] = write
    t.write_done(error=FAILED)  # reported twice
    t.assert_state("PrepareCommit")
    assert len(t.all_markers) == 1


def test_the_outcome_of_a_write_before_is_ignored() -> None:
    t, who = ongoing()
    t.call_add(who, P1)
    write = t.writes["t"]
    t.write_done()
    commit = t.call_end(who, commit=True)
    t.send("t", Persisted(write.revision))
    assert commit.waits
    assert not t.markers


def test_an_end_that_failed_at_the_last_epoch_takes_another_producer_id() -> None:
    t, who = TxnDriver.at_epoch(32_766)
    t.add(who, P0)
    t.hold_writes = True
    t.call_end(who, commit=True)
    t.fail_write(stored=True)
    call = t.call_end(who, commit=True)
    t.write_done()
    new = identity(call)
    assert t.state() == "CompleteCommit"
    t.hold_writes = False
    t.restart()
    assert t.end(who, commit=True) == new
    t.add(new, P0)
