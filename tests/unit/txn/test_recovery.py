"""Restarts at every step, slots that move, and stores that lost their tail."""

from typing import Any

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.machine import Persisted
from moldau.broker.txn.transitions import Identity
from tests.support.drivers.txn_driver import P0, P1, P2, TIMEOUT_MS, TxnDriver, error, identity
from tests.support.drivers.txn_world import Call

MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING


def ending(commit: bool, version: int = 5) -> tuple[TxnDriver, Identity]:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0, P1)
    t.hold_markers = True
    return t, t.end(who, commit=commit, version=version)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [4, 5])
def test_a_restart_sends_the_markers_again(commit: bool, version: int) -> None:
    t, who = ending(commit, version)
    t.restart()
    t.restart()
    first, *others = t.all_markers
    assert others == [first, first]
    assert first.commit is commit
    add = t.call_add(who, P2)
    assert add.waits
    t.markers_done()
    assert add.answer.number == 2


def test_a_restart_before_complete_is_stored() -> None:
    t, who = ending(commit=True)
    t.markers_done()
    t.restart()
    t.assert_state("PrepareCommit")
    t.markers_done()
    t.assert_state("CompleteCommit")
    assert t.add(who, P0) == 2


def test_a_restart_after_complete_is_stored() -> None:
    t, who = ending(commit=True)
    t.markers_done()
    t.sleep(1_000)
    t.restart()
    t.assert_state("CompleteCommit")
    assert len(t.all_markers) == 1
    assert t.add(who, P0) == 2


def test_a_restart_after_the_abort_of_nothing() -> None:
    t = TxnDriver()
    who = t.end(t.init(), commit=False)
    t.restart()
    t.assert_state("CompleteAbort")
    assert not t.all_markers
    t.sleep(1_000)
    assert t.record().state == "CompleteAbort"
    t.add(who, P0)


def test_a_restart_while_the_decision_is_being_stored() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    t.hold_writes = True
    t.call_end(who, commit=True)
    t.restart()
    t.assert_state("Ongoing")
    again = t.call_end(who, commit=True)
    t.write_done()
    assert again.answer.error is ErrorCode.NONE


def test_init_answers_the_same_after_a_restart() -> None:
    t = TxnDriver()
    a = t.init()
    b = t.init(a)
    t.restart()
    assert t.init(a) == b


def test_a_marker_that_is_reported_twice_ends_no_later_transaction() -> None:
    t, who = ending(commit=True)
    (markers,) = t.markers
    t.markers_done()
    t.add(who, P0)
    who = t.end(who, commit=False)
    t.markers.insert(0, markers)
    t.markers.pop()
    t.markers_done()
    t.assert_state("PrepareAbort")


def test_a_slot_that_is_given_up_answers_whoever_waits() -> None:
    t, who = ending(commit=True)
    t.hold_writes = True
    calls: list[Call[Any]] = [t.call_add(who, P0), t.call_init(), t.call_end(who, commit=False)]
    other = t.call_init(name="other")
    t.give_up()
    assert {error(call) for call in [*calls, other]} == {ErrorCode.NOT_COORDINATOR}
    assert not t.timers
    assert not t.transactions.by_id
    assert error(t.call_init()) is ErrorCode.NOT_COORDINATOR


def test_a_slot_that_is_given_up_while_it_writes() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    t.hold_writes = True
    calls: list[Call[Any]] = [t.call_add(who, P1), t.call_add(who, P2), t.call_init()]
    t.give_up()
    assert {error(call) for call in calls} == {ErrorCode.NOT_COORDINATOR}


def test_a_slot_that_is_being_loaded() -> None:
    t = TxnDriver()
    t.transactions.start_loading(0)
    for call in (t.call_init(), t.call_add(Identity(1, 0), P0)):
        assert error(call) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert t.transactions.loading() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert not t.transactions.is_loaded(0)
    t.run(t.transactions.finish_loading(0, [], t.now))
    assert t.transactions.loading() is ErrorCode.NONE
    assert t.transactions.is_loaded(0)
    assert t.init()


# --- a store that lost its tail ---


def test_what_the_store_lost_is_written_again() -> None:
    t = TxnDriver()
    who = t.init()
    kept = dict(t.stored)
    t.add(who, P0)
    ongoing = t.record()
    t.lose_tail(kept)
    assert t.record().revision > ongoing.revision
    assert t.record().partitions == (P0,)
    assert not t.all_markers
    assert t.end(who, commit=True)


def test_what_the_store_did_not_lose_is_left_alone() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    t.end(who, commit=True)
    t.sleep(5_000)
    asked, markers = t.writes_asked, len(t.all_markers)
    t.lose_tail(t.stored)
    assert (t.writes_asked, len(t.all_markers)) == (asked, markers)


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_an_open_transaction_can_only_be_aborted_if_its_records_may_be_lost(
    is_kept: bool, version: int
) -> None:
    t = TxnDriver()
    who = t.init()
    kept = dict(t.stored)
    t.add(who, P0, P1)
    t.lose_tail(dict(t.stored) if is_kept else kept, require_abort=True)
    t.restart()  # it is stored
    t.assert_state("Ongoing")
    refusal = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else MAPPING
    for _ in range(2):
        assert error(t.call_end(who, commit=True, version=version)) is refusal
    assert t.add(who, P2) == 1  # no harm: it is aborted as well
    who = t.end(who, commit=False, version=version)
    assert {(each.commit, each.partitions) for each in t.all_markers} == {(False, (P0, P1, P2))}
    # Its producer goes on.
    assert t.add(who, P0) == 2
    t.end(who, commit=True, version=version)
    t.assert_state("CompleteCommit")


def test_a_producer_that_has_to_abort_may_raise_its_epoch_instead() -> None:
    """librdkafka and Java 3 do this."""
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    t.lose_tail(dict(t.stored), require_abort=True)
    assert error(t.call_end(who, commit=True, version=1)) is MAPPING
    raised = t.init(who)
    assert raised == (who.producer_id, who.producer_epoch + 1)
    assert [each.commit for each in t.all_markers] == [False]
    t.add(raised, P0)
    t.end(raised, commit=True)


def test_what_has_to_be_aborted_is_aborted_by_its_timeout() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    t.lose_tail(dict(t.stored), require_abort=True)
    t.sleep(TIMEOUT_MS)
    t.assert_state("CompleteAbort")
    assert error(t.call_end(who, commit=True, version=4)) is ErrorCode.PRODUCER_FENCED


def test_a_decision_that_is_being_stored_counts_as_failed_if_records_may_be_lost() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    kept = dict(t.stored)
    t.hold_writes = True
    commit = t.call_end(who, commit=True)
    late = t.writes.pop("t")
    t.lose_tail(kept, require_abort=True)
    assert commit.answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    t.send("t", Persisted(late.revision, ErrorCode.NONE))
    t.assert_state("Ongoing")
    again = t.call_end(who, commit=True)
    t.write_done()
    assert error(again) is ErrorCode.TRANSACTION_ABORTABLE
    t.hold_writes = False
    t.end(who, commit=False)
    assert [each.commit for each in t.all_markers] == [False]


def test_what_is_not_open_goes_on_though_records_may_be_lost() -> None:
    t = TxnDriver()
    who = t.init()
    t.lose_tail(dict(t.stored), require_abort=True)
    t.add(who, P0)
    assert t.end(who, commit=True)


@pytest.mark.parametrize("lost", ["markers", "decision", "everything"])
@pytest.mark.parametrize("is_stored", [False, True])
def test_markers_that_the_store_lost_are_written_again(lost: str, is_stored: bool) -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    ongoing = dict(t.stored)
    who = t.end(who, commit=True)
    decided = dict(t.stored)
    if is_stored:
        t.sleep(5_000)
    t.hold_writes = t.hold_markers = True
    t.lose_tail({"markers": decided, "decision": ongoing, "everything": {}}[lost])
    assert not t.markers  # the decision comes first
    add = t.call_add(who, P1)
    t.write_done()
    assert t.record().state == "PrepareCommit"
    (again,) = t.markers
    assert again == t.all_markers[0]
    assert add.waits
    t.markers_done()
    t.write_done()
    assert add.answer.number == 2


def test_markers_that_the_store_lost_while_they_were_written() -> None:
    t, who = ending(commit=True)
    t.lose_tail(dict(t.stored))
    assert t.all_markers == [t.all_markers[0]] * 2
    t.markers_done()
    assert t.add(who, P0) == 2


def test_markers_that_are_written_while_the_decision_is_stored_again() -> None:
    t, _who = ending(commit=True)
    t.hold_writes = True
    t.lose_tail({})
    t.markers_done()
    t.assert_state("CompleteCommit")
    t.write_done()
    t.markers_done()
    t.sleep(2_000)
    t.write_done()
    assert t.record().state == "CompleteCommit"


def test_the_abort_of_nothing_is_not_taken_for_the_transaction_before() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    kept = dict(t.stored)
    who = t.end(who, commit=True)
    who = t.end(who, commit=False)
    t.lose_tail(kept)
    assert [(m.number, m.commit) for m in t.all_markers] == [(1, True), (1, True)]
    t.assert_state("CompleteAbort")
    assert t.add(who, P0) == 3


def test_markers_of_the_transaction_before_come_again_beside_the_open_one() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    kept = dict(t.stored)
    who = t.end(who, commit=True)
    t.add(who, P1)
    t.lose_tail(kept)
    assert [(m.number, m.commit) for m in t.all_markers] == [(1, True), (1, True)]
    t.assert_state("Ongoing")
    assert t.record().number == 2


@pytest.mark.parametrize("version", [4, 5])
def test_nothing_joins_before_the_markers_of_the_transaction_before_are_there_again(
    version: int,
) -> None:
    """Or they would end the one that is open, with a part of its records."""
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    kept = dict(t.stored)
    who = t.end(who, commit=True, version=version)
    t.add(who, P0)
    t.hold_writes = t.hold_markers = True
    t.lose_tail(kept, require_abort=True)
    batch, other_workers, end = (
        t.call_add(who, P0),
        t.call_add(who, P0, waits=False),
        t.call_end(who, commit=False, version=version),
    )
    verified = t.call_verify(who, P0)
    t.write_done()
    assert [m.number for m in t.markers] == [1]
    assert batch.waits
    assert end.waits
    for refused in (other_workers, verified, t.call_verify(who, P0)):
        assert error(refused) is ErrorCode.CONCURRENT_TRANSACTIONS
    t.markers_done()
    assert batch.answer.number == 2
    t.write_done()
    assert error(end) is ErrorCode.NONE
    assert [(m.number, m.commit) for m in t.markers] == [(2, False)]


def test_a_timeout_waits_for_the_markers_of_the_transaction_before() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    kept = dict(t.stored)
    who = t.end(who, commit=True)
    t.add(who, P0)
    t.hold_markers = True
    t.lose_tail(kept)
    t.sleep(TIMEOUT_MS)
    assert [(m.number, m.commit) for m in t.markers] == [(1, True)]
    t.markers_done()
    assert [(m.number, m.commit) for m in t.markers] == [(2, False)]


def test_a_tail_lost_while_markers_are_written_again() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    kept = dict(t.stored)
    who = t.end(who, commit=True)
    who = t.end(t_added(t, who), commit=False)
    who = t.end(t_added(t, who), commit=True)
    t.hold_markers = True
    t.lose_tail(kept)
    t.lose_tail(dict(t.stored))
    add = t.call_add(who, P1)
    numbers = []
    while t.markers:
        numbers.append(sorted({m.number for m in t.markers}))
        assert add.waits
        t.markers_done()
    assert numbers == [[1], [3]]  # never two at once
    assert add.answer.number == 4


def t_added(t: TxnDriver, who: Identity) -> Identity:
    t.add(who, P0)
    return who


@pytest.mark.parametrize("commit", [True, False])
def test_what_only_the_store_knows_to_be_open_is_aborted(commit: bool) -> None:
    """Its decision is lost, and so is every marker of it."""
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    kept = dict(t.stored)
    for partition in (P1, P2):
        who = t.end(who, commit=commit)
        t.add(who, partition)
    who = t.end(who, commit=True)
    t.all_markers.clear()
    t.lose_tail(kept)
    assert [(m.number, m.commit, m.partitions) for m in t.all_markers] == [
        (1, False, (P0,)),
        (3, True, (P2,)),
    ]


def test_an_add_that_failed_is_not_aborted_for_its_number_comes_again() -> None:
    t = TxnDriver()
    who = t.init()
    t.hold_writes = True
    t.call_add(who, P0)
    t.fail_write(stored=True)
    t.hold_writes = False
    t.lose_tail(dict(t.stored))
    assert not t.all_markers
    assert t.record().state == "Empty"
    assert t.add(who, P0) == 1


def test_markers_that_come_again_wait_for_a_write_that_fails() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    kept = dict(t.stored)
    t.end(who, commit=True)
    t.hold_writes = t.hold_markers = True
    t.lose_tail(kept)
    t.fail_write()
    assert not t.markers
    t.sleep(t.config.persist_retry_ms)
    t.write_done()
    assert len(t.markers) == 1
    t.markers_done()
    t.assert_state("CompleteCommit")


def test_a_tail_lost_while_a_write_is_in_flight() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    kept = dict(t.stored)
    who = t.end(who, commit=True)
    t.hold_writes = t.hold_markers = True
    t.all_markers.clear()
    add = t.call_add(who, P1)
    t.lose_tail(kept)
    t.write_done()
    assert add.answer.number == 2
    t.write_done()
    assert t.record().state == "Ongoing"
    assert [(m.number, m.commit) for m in t.all_markers] == [(1, True)]


def test_an_id_that_was_removed_and_is_back() -> None:
    t = TxnDriver()
    who = t.init()
    kept = dict(t.stored)
    t.sleep(8 * 24 * 3_600_000)
    t.run(t.transactions.expire(t.now))
    t.lose_tail(kept)
    t.assert_state("Empty")
    assert error(t.call_add(who, P0)) is ErrorCode.PRODUCER_FENCED
    assert t.init().producer_id != who.producer_id


# --- a store that lost its tail, and no one knows what it was ---


def test_epochs_that_may_have_been_given_out_are_not_given_again() -> None:
    t = TxnDriver()
    a = t.init()
    kept = dict(t.stored)
    b = t.init()
    t.stored = kept
    t.restart(is_stale=True)
    c = t.init()
    assert c.producer_id not in (a.producer_id, b.producer_id)
    for old in (a, b):
        assert error(t.call_init(old)) is ErrorCode.PRODUCER_FENCED
        assert error(t.call_end(old, commit=False)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    t.add(c, P0)


def test_an_open_transaction_of_a_stale_record_is_aborted() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    t.hold_writes = t.hold_markers = True
    t.restart(is_stale=True)
    init = t.call_init()
    t.fail_write()
    assert error(init) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not t.markers
    add = t.call_add(who, P1)
    t.write_done()
    assert error(add) is ErrorCode.PRODUCER_FENCED
    assert t.record().state == "PrepareAbort"
    (markers,) = t.markers
    assert (markers.number, markers.commit, markers.producer_epoch) == (1, False, 32_767)
    init = t.call_init()
    t.markers_done()
    t.write_done()
    assert identity(init).producer_id != who.producer_id
    t.sleep(2 * TIMEOUT_MS)


@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_of_a_stale_record_stays(commit: bool) -> None:
    t, who = ending(commit)
    t.restart(is_stale=True)
    assert {markers.commit for markers in t.all_markers} == {commit}
    t.markers_done()
    t.assert_state("CompleteCommit" if commit else "CompleteAbort")
    assert error(t.call_add(who, P0)) is ErrorCode.PRODUCER_FENCED
    t.restart()
    assert error(t.call_add(who, P0)) is ErrorCode.PRODUCER_FENCED
    t.markers_done()
    assert t.init().producer_id != who.producer_id
