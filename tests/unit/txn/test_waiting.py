"""What meets a transaction that is ending waits for its markers, and not forever."""

from moldau.broker.errors import ErrorCode
from tests.support.drivers.txn_driver import P0, P1, P2, TxnDriver, error, identity

CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS


def test_the_next_transaction_is_begun_at_once_after_end_txn() -> None:
    t = TxnDriver()
    t.hold_markers = True
    who = t.init()
    for number in range(1, 20):
        first = t.call_add(who, P0)
        second = t.call_add(who, P1)
        t.sleep(60)
        t.markers_done()
        assert (first.answer.number, second.answer.number) == (number, number)
        assert first.answer.error is second.answer.error is ErrorCode.NONE
        who = t.end(who, commit=True)
        assert t.record().partitions == (P0, P1)


def test_after_100_ms_the_client_is_asked_to_come_again() -> None:
    t = TxnDriver()
    t.hold_markers = True
    who = t.init()
    t.add(who, P0)
    who = t.end(who, commit=True)
    t.sleep(1_000)
    add = t.call_add(who, P1)
    t.sleep(40)
    init = t.call_init()
    abort = t.call_end(who, commit=False)
    t.sleep(59)
    assert add.waits
    t.sleep(1)
    assert error(add) is CONCURRENT
    assert init.waits
    assert abort.waits
    t.sleep(40)
    assert error(init) is CONCURRENT
    assert error(abort) is CONCURRENT
    t.assert_state("PrepareCommit")
    t.markers_done()
    t.assert_state("CompleteCommit")
    assert t.add(who, P1) == 2


def test_init_that_aborts_waits_for_the_markers_at_most_100_ms() -> None:
    t = TxnDriver()
    t.hold_markers = t.hold_writes = True
    first = t.call_init()
    t.write_done()
    who = identity(first)
    t.call_add(who, P0)
    t.write_done()
    init = t.call_init()
    t.sleep(500)  # the store is slow: its outcome is waited for
    assert init.waits
    t.write_done()
    t.sleep(99)
    assert init.waits
    t.sleep(1)
    assert error(init) is CONCURRENT
    again = t.call_init()
    t.markers_done()
    t.write_done()
    assert identity(again) == (who.producer_id, who.producer_epoch + 2)


def test_requests_of_other_workers_never_wait_for_markers() -> None:
    t = TxnDriver()
    t.hold_markers = True
    who = t.init()
    t.add(who, P0, waits=False)
    who = t.end(who, commit=True)
    assert error(t.call_add(who, P1, waits=False)) is CONCURRENT
    t.markers_done()
    assert t.add(who, P1, waits=False) == 2


def test_waiting_can_be_switched_off() -> None:
    t = TxnDriver(wait_for_markers_ms=0)
    t.hold_markers = True
    who = t.init()
    t.add(who, P0)
    who = t.end(who, commit=True)
    assert error(t.call_add(who, P1)) is CONCURRENT
    assert error(t.call_init()) is CONCURRENT


def test_those_that_wait_are_served_in_their_order() -> None:
    t = TxnDriver()
    t.hold_markers = True
    who = t.init()
    t.add(who, P0)
    who = t.end(who, commit=True)
    add, more, abort, late = (
        t.call_add(who, P1),
        t.call_add(who, P2),
        t.call_end(who, commit=False),
        t.call_add(who, P0),
    )
    t.markers_done()
    assert add.answer.number == more.answer.number == 2
    assert abort.answer.producer_epoch == who.producer_epoch + 1
    assert error(late) is ErrorCode.PRODUCER_FENCED
    assert [(m.number, m.commit, m.partitions) for m in t.all_markers] == [
        (1, True, (P0,)),
        (2, False, (P1, P2)),
    ]


def test_several_processes_of_one_id_at_once() -> None:
    t = TxnDriver()
    t.hold_markers = True
    who = t.init()
    t.add(who, P0)
    calls = [t.call_init() for _ in range(3)]
    t.markers_done()
    epochs = [identity(call).producer_epoch for call in calls]
    assert epochs == [2, 3, 4]


def test_the_process_that_aborts_is_served_first() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    t.hold_markers = t.hold_writes = True
    calls = [t.call_init() for _ in range(3)]
    t.write_done()
    t.markers_done()
    t.hold_writes = False
    t.write_done()
    assert [identity(call).producer_epoch for call in calls] == [2, 3, 4]


def test_whoever_waited_for_markers_is_not_kept_waiting_by_a_write_that_fails() -> None:
    t = TxnDriver()
    t.hold_markers = True
    who = t.init()
    t.add(who, P0)
    who = t.end(who, commit=True)
    t.hold_writes = True
    add, abort = t.call_add(who, P0), t.call_end(who, commit=False)
    t.markers_done()
    t.fail_write()
    assert error(add) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert error(abort) is ErrorCode.COORDINATOR_NOT_AVAILABLE
