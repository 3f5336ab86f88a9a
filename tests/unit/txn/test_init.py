"""InitProducerId: epochs, fencing, producers that go on (KIP-360), exhausted epochs."""

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.txn.transitions import Identity
from tests.support.drivers.txn_driver import P0, TxnDriver, error, identity


def test_a_new_id_has_epoch_0_and_the_next_process_epoch_1() -> None:
    t = TxnDriver()
    a = t.init()
    assert a.producer_epoch == 0
    b = t.init()
    assert b == (a.producer_id, 1)
    assert t.record().last_producer_epoch == -1


def test_of_two_producers_the_older_one_is_fenced() -> None:
    t = TxnDriver()
    a, b = t.init(), t.init()
    fenced = ErrorCode.PRODUCER_FENCED
    for version in (2, 4, 5):
        assert error(t.call_add(a, P0, version=version)) is fenced
        assert error(t.call_end(a, commit=True, version=version)) is fenced
        assert error(t.call_end(a, commit=False, version=version)) is fenced
    for version in (0, 1):
        assert error(t.call_add(a, P0, version=version)) is ErrorCode.INVALID_PRODUCER_EPOCH
        call = t.call_end(a, commit=True, version=version)
        assert error(call) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert error(t.call_init(a)) is fenced
    t.add(b, P0)
    assert error(t.call_init(a)) is fenced  # it must not abort the transaction of the other
    t.assert_state("Ongoing")


def test_init_in_an_open_transaction_aborts_it_and_gives_an_epoch_two_above() -> None:
    t = TxnDriver()
    a = t.init()
    t.add(a, P0)
    t.hold_markers = True
    b = t.call_init()
    assert b.waits
    (markers,) = t.markers
    assert not markers.commit
    assert markers.producer_epoch == a.producer_epoch + 1
    t.markers_done()
    assert identity(b) == (a.producer_id, a.producer_epoch + 2)
    assert error(t.call_end(a, commit=True)) is ErrorCode.PRODUCER_FENCED
    assert error(t.call_end(a, commit=False)) is ErrorCode.PRODUCER_FENCED


def test_the_old_producer_is_fenced_already_while_its_transaction_is_aborted() -> None:
    t = TxnDriver()
    a = t.init()
    t.add(a, P0)
    t.hold_markers = True
    t.call_init()
    t.assert_state("PrepareAbort")
    for call in (
        t.call_add(a, P0),
        t.call_verify(a, P0),
        t.call_end(a, commit=True),
        t.call_end(a, commit=False),
        t.call_end(a, commit=True, version=4),
        t.call_init(a),
    ):
        assert error(call) is ErrorCode.PRODUCER_FENCED


def test_7_3_a_producer_that_goes_on() -> None:
    t = TxnDriver()
    a = t.init()
    b = t.init(a)
    assert b == (a.producer_id, 1)
    assert t.init(a) == b  # the answer was lost
    assert t.init(a) == b
    c = t.init(b)
    assert c == (a.producer_id, 2)
    assert error(t.call_init(a)) is ErrorCode.PRODUCER_FENCED
    assert error(t.call_init(a, version=3)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert t.init(b) == c
    t.assert_state("Empty")


def test_7_3_a_new_process_leaves_nothing_to_repeat() -> None:
    t = TxnDriver()
    a = t.init()
    t.init()
    assert error(t.call_init(a)) is ErrorCode.PRODUCER_FENCED


def test_7_3_an_id_without_an_epoch_or_the_reverse() -> None:
    t = TxnDriver()
    a = t.init()
    for given in (Identity(a.producer_id, -1), Identity(-1, a.producer_epoch), Identity(-2, -2)):
        assert error(t.call_init(given)) is ErrorCode.INVALID_REQUEST


def test_a_producer_that_goes_on_in_its_own_transaction_aborts_it() -> None:
    t = TxnDriver()
    a = t.init()
    t.add(a, P0)
    t.hold_markers = True
    call = t.call_init(a)
    t.markers_done()
    b = identity(call)
    assert b.producer_epoch > a.producer_epoch
    assert t.init(a) == b  # the answer was lost
    t.add(b, P0)
    assert error(t.call_init(a)) is ErrorCode.PRODUCER_FENCED  # it has used b since


@pytest.mark.parametrize("goes_on", [False, True])
def test_7_4_init_with_exhausted_epochs_gives_a_new_producer_id(goes_on: bool) -> None:
    t, a = TxnDriver.at_epoch(32_765)
    b = t.init(a) if goes_on else t.init()
    assert b == (a.producer_id, 32_766)
    c = t.init(b) if goes_on else t.init()
    assert c.producer_id != a.producer_id
    assert c.producer_epoch == 0
    if goes_on:
        assert t.init(b) == c
    assert error(t.call_add(b, P0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    t.add(c, P0)
    if goes_on:
        assert error(t.call_init(b)) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("goes_on", [False, True])
def test_7_4_init_in_an_open_transaction_of_the_last_epoch(goes_on: bool) -> None:
    t, a = TxnDriver.at_epoch(32_766)
    t.add(a, P0)
    t.hold_markers = True
    call = t.call_init(a) if goes_on else t.call_init()
    (markers,) = t.markers
    assert (markers.producer_id, markers.producer_epoch) == (a.producer_id, 32_767)
    t.markers_done()
    b = identity(call)
    assert b.producer_id != a.producer_id
    assert b.producer_epoch == 0
    if goes_on:
        assert t.init(a) == b


def test_7_4_end_with_exhausted_epochs_gives_a_new_producer_id() -> None:
    t, a = TxnDriver.at_epoch(32_766)
    t.add(a, P0)
    t.hold_markers = True
    b = t.end(a, commit=True)
    assert b.producer_id != a.producer_id
    assert b.producer_epoch == 0
    (markers,) = t.markers
    assert (markers.producer_id, markers.producer_epoch) == (a.producer_id, 32_767)
    assert t.end(a, commit=True) == b  # again, before the markers are written
    assert error(t.call_end(a, commit=False)) is ErrorCode.INVALID_TXN_STATE
    add = t.call_add(b, P0)  # the next transaction
    assert add.waits
    t.markers_done()
    assert add.answer.number == 2
    assert t.record().producer_id == b.producer_id
    assert error(t.call_end(a, commit=True)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    t.end(b, commit=True)
    assert t.markers[-1].producer_id == b.producer_id


@pytest.mark.parametrize("commit", [True, False])
def test_7_4_that_end_is_answered_again_after_a_restart(commit: bool) -> None:
    t, a = TxnDriver.at_epoch(32_766)
    t.add(a, P0)
    t.hold_markers = True
    b = t.end(a, commit=commit)
    t.restart()
    assert t.end(a, commit=commit) == b
    t.markers_done()
    t.assert_state("CompleteCommit" if commit else "CompleteAbort")
    assert t.end(a, commit=commit) == b
    t.sleep(5_000)
    t.restart()
    assert t.end(a, commit=commit) == b
    assert error(t.call_end(a, commit=not commit)) is ErrorCode.INVALID_TXN_STATE


def test_7_4_the_abort_of_nothing_with_exhausted_epochs() -> None:
    t, a = TxnDriver.at_epoch(32_766)
    b = t.end(a, commit=False)
    assert b.producer_id != a.producer_id
    assert b.producer_epoch == 0
    assert t.end(a, commit=False) == b
    t.add(b, P0)


def test_7_4_below_v5_the_last_epoch_is_kept() -> None:
    t, a = TxnDriver.at_epoch(32_766)
    t.add(a, P0)
    assert t.end(a, commit=True, version=4) == a
    t.add(a, P0)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_7_5_a_timeout_out_of_range(timeout_ms: int) -> None:
    t = TxnDriver()
    call = t.call_init(timeout_ms=timeout_ms)
    assert error(call) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert not t.transactions.by_id
    assert t.init(timeout_ms=900_000)
    assert t.init(timeout_ms=1)
    assert t.record().timeout_ms == 1


def test_7_5_an_empty_id_is_none() -> None:
    t = TxnDriver()
    assert error(t.call_init(name="")) is ErrorCode.INVALID_REQUEST
    assert error(t.call_add(Identity(1, 0), P0, name="")) is ErrorCode.INVALID_REQUEST
    assert error(t.call_end(Identity(1, 0), commit=True, name="")) is ErrorCode.INVALID_REQUEST


def test_no_producer_id_at_hand() -> None:
    t, a = TxnDriver.at_epoch(32_766)
    t.has_producer_ids = False
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert error(t.call_init(name="another")) is loading
    assert error(t.call_init()) is loading
    t.add(a, P0)
    assert error(t.call_end(a, commit=True)) is loading
    t.assert_state("Ongoing")
    t.has_producer_ids = True
    assert t.end(a, commit=True).producer_epoch == 0
