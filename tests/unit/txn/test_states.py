"""Every state and every request: what is answered, and what becomes of the transaction.

The table of broker/txn/README.md, as a test. `A` is the producer whose transaction it is; before it
asks, markers are held back, so that Prepare* stays.
"""

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.txn.transitions import Identity
from tests.support.drivers.txn_driver import P0, P1, TxnDriver, error

NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
WRONG_STATE = ErrorCode.INVALID_TXN_STATE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS

STATES = ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"]


def in_state(state: str, *, version: int = 4) -> tuple[TxnDriver, Identity]:
    """An id in this state, and what its producer has then. EndTxn below v5 keeps the epoch."""
    t = TxnDriver()
    who = t.init(t.init(t.init()))  # epoch 2, and 1 before
    if state == "Empty":
        return t, who
    assert t.add(who, P0) == 1
    if state == "Ongoing":
        return t, who
    t.hold_markers = state.startswith("Prepare")
    who = t.end(who, commit=state.endswith("Commit"), version=version)
    t.assert_state(state)
    return t, who


def stale(who: Identity) -> Identity:
    return Identity(who.producer_id, who.producer_epoch - 1)


def other(who: Identity) -> Identity:
    return Identity(who.producer_id + 500, who.producer_epoch)


# --- Init ---


@pytest.mark.parametrize("state", ["Empty", "CompleteCommit", "CompleteAbort"])
@pytest.mark.parametrize("goes_on", [False, True], ids=["new process", "goes on"])
def test_init_gives_the_next_epoch(state: str, goes_on: bool) -> None:
    t, who = in_state(state)
    new = t.init(who) if goes_on else t.init()
    assert new == (who.producer_id, who.producer_epoch + 1)
    t.assert_state("Empty")
    assert t.record().partitions == ()
    assert t.record().state == "Empty"


@pytest.mark.parametrize("goes_on", [False, True], ids=["new process", "goes on"])
@pytest.mark.parametrize("state", ["Ongoing", "PrepareCommit", "PrepareAbort"])
def test_init_waits_for_the_transaction_to_end(state: str, goes_on: bool) -> None:
    t, who = in_state(state)
    t.hold_markers = True
    call = t.call_init(who) if goes_on else t.call_init()
    assert call.waits
    t.assert_state("PrepareAbort" if state == "Ongoing" else state)
    t.markers_done()
    # An epoch is used up by the abort; a producer that goes on may have that one.
    above = 2 if state == "Ongoing" and not goes_on else 1
    assert call.answer.producer_id == who.producer_id
    assert call.answer.producer_epoch == who.producer_epoch + above
    t.assert_state("Empty")


@pytest.mark.parametrize("state", STATES)
def test_init_with_a_foreign_epoch_or_id_is_fenced_and_changes_nothing(state: str) -> None:
    t, who = in_state(state)
    before = t.transactions.describe("t")
    for given in (
        Identity(who.producer_id, who.producer_epoch + 1),
        Identity(who.producer_id, who.producer_epoch - 2),
        other(who),
    ):
        assert error(t.call_init(given)) is FENCED
        assert error(t.call_init(given, version=4)) is FENCED
        assert error(t.call_init(given, version=3)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert t.transactions.describe("t") == before


# --- Add ---


@pytest.mark.parametrize("state", ["Empty", "CompleteCommit", "CompleteAbort"])
def test_add_opens_the_next_transaction(state: str) -> None:
    t, who = in_state(state)
    number = t.record().number
    assert t.add(who, P1) == number + 1
    t.assert_state("Ongoing")
    assert t.record().partitions == (P1,)
    assert t.record().started_ms == t.now


def test_add_to_an_open_transaction() -> None:
    t, who = in_state("Ongoing")
    t.sleep(10)
    assert t.add(who, P1, P0, P1) == 1
    assert t.record().partitions == (P0, P1)
    assert t.record().started_ms == t.now - 10


@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort"])
@pytest.mark.parametrize("version", [4, 5])
def test_add_waits_for_the_transaction_before(state: str, version: int) -> None:
    t, who = in_state(state, version=version)
    call = t.call_add(who, P1)
    assert call.waits
    t.markers_done()
    assert call.answer.number == 2
    t.assert_state("Ongoing")
    assert t.record().partitions == (P1,)


@pytest.mark.parametrize("state", STATES)
def test_add_by_a_foreign_producer_is_refused(state: str) -> None:
    t, who = in_state(state)
    before = t.transactions.describe("t")
    for verify_only in (False, True):
        call = t.call_add(other(who), P0, verify_only=verify_only)
        assert error(call) is MAPPING
        for epoch in (who.producer_epoch - 1, who.producer_epoch + 1):
            given = Identity(who.producer_id, epoch)
            call = t.call_add(given, P0, verify_only=verify_only)
            assert error(call) is FENCED
            call = t.call_add(given, P0, verify_only=verify_only, version=2)
            assert error(call) is FENCED
            call = t.call_add(given, P0, verify_only=verify_only, version=1)
            assert error(call) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert t.transactions.describe("t") == before


@pytest.mark.parametrize("state", STATES)
def test_verify_never_changes_anything(state: str) -> None:
    t, who = in_state(state)
    writes = t.writes_asked
    answer = t.call_verify(who, P0, P1).answer
    if state.startswith("Prepare"):
        assert answer.error is CONCURRENT
    else:
        assert answer.error is NONE
        assert answer.missing == ({P1} if state == "Ongoing" else {P0, P1})
    if state == "Ongoing":
        assert t.call_verify(who, P0).answer.missing == frozenset()
        assert t.call_verify(who, P0).answer.number == 1
    assert t.writes_asked == writes
    t.assert_state(state)


# --- End below v5 ---

BELOW_5 = {
    ("Empty", True): WRONG_STATE,
    ("Empty", False): WRONG_STATE,
    ("Ongoing", True): NONE,
    ("Ongoing", False): NONE,
    ("PrepareCommit", True): NONE,
    ("PrepareCommit", False): WRONG_STATE,
    ("PrepareAbort", True): WRONG_STATE,
    ("PrepareAbort", False): NONE,
    ("CompleteCommit", True): NONE,
    ("CompleteCommit", False): WRONG_STATE,
    ("CompleteAbort", True): WRONG_STATE,
    ("CompleteAbort", False): NONE,
}


@pytest.mark.parametrize(("state", "commit"), BELOW_5)
@pytest.mark.parametrize("version", [0, 4])
def test_7_13_end_below_v5(state: str, commit: bool, version: int) -> None:
    t, who = in_state(state)
    t.hold_markers = True
    call = t.call_end(who, commit=commit, version=version)
    assert error(call) is BELOW_5[state, commit]
    if state == "Ongoing":
        t.assert_state("PrepareCommit" if commit else "PrepareAbort")
        assert t.record().producer_epoch == who.producer_epoch
        assert call.answer.producer_epoch == who.producer_epoch
    else:
        t.assert_state(state)


# --- End from v5 on ---


@pytest.mark.parametrize("commit", [True, False])
def test_end_v5_of_an_open_transaction_raises_the_epoch(commit: bool) -> None:
    t, who = in_state("Ongoing")
    t.hold_markers = True
    assert t.end(who, commit=commit) == (who.producer_id, who.producer_epoch + 1)
    t.assert_state("PrepareCommit" if commit else "PrepareAbort")
    (markers,) = t.markers
    assert markers.commit is commit
    assert (markers.producer_epoch, markers.number) == (who.producer_epoch + 1, 1)
    assert markers.partitions == (P0,)


@pytest.mark.parametrize("state", ["Empty", "CompleteCommit", "CompleteAbort"])
def test_7_13_abort_v5_of_nothing_raises_the_epoch(state: str) -> None:
    t, who = in_state(state)
    asked, number = len(t.all_markers), t.record().number
    new = t.end(who, commit=False)
    assert t.record().number == number + 1
    assert new == (who.producer_id, who.producer_epoch + 1)
    assert len(t.all_markers) == asked
    t.assert_state("CompleteAbort")
    assert error(t.call_add(who, P0)) is FENCED
    assert t.end(who, commit=False) == new


@pytest.mark.parametrize("state", ["Empty", "CompleteCommit", "CompleteAbort"])
def test_7_13_commit_v5_of_nothing(state: str) -> None:
    t, who = in_state(state)
    assert error(t.call_end(who, commit=True)) is WRONG_STATE
    t.assert_state(state)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort"])
def test_end_v5_of_the_next_transaction_while_one_is_ending(state: str, commit: bool) -> None:
    t, who = in_state(state, version=5)
    call = t.call_end(who, commit=commit)
    if commit:  # nothing can have been added to it yet
        assert error(call) is WRONG_STATE
        return
    assert call.waits
    t.markers_done()
    assert call.answer.producer_epoch == who.producer_epoch + 1
    t.assert_state("CompleteAbort")


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(
    "state", ["PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"]
)
def test_7_13_end_v5_again_with_the_previous_epoch(state: str, commit: bool) -> None:
    t, who = in_state(state, version=5)
    writes = t.writes_asked
    call = t.call_end(stale(who), commit=commit)
    if commit is state.endswith("Commit"):
        assert error(call) is NONE
        assert (call.answer.producer_id, call.answer.producer_epoch) == who
    else:
        assert error(call) is WRONG_STATE
    t.assert_state(state)
    assert t.writes_asked == writes


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", ["Empty", "Ongoing"])
def test_end_v5_with_the_epoch_before_init_is_fenced(state: str, commit: bool) -> None:
    t, who = in_state(state)
    assert error(t.call_end(stale(who), commit=commit)) is FENCED
    t.assert_state(state)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", STATES)
def test_end_by_a_foreign_producer_is_refused(state: str, commit: bool) -> None:
    t, who = in_state(state)
    before = t.transactions.describe("t")
    for version in (0, 1, 2, 4, 5):
        fenced = FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
        assert error(t.call_end(other(who), commit=commit, version=version)) is MAPPING
        for epoch in (who.producer_epoch - 2, who.producer_epoch + 1):
            given = Identity(who.producer_id, epoch)
            assert error(t.call_end(given, commit=commit, version=version)) is fenced
    assert error(t.call_end(stale(who), commit=commit, version=4)) is FENCED
    assert error(t.call_end(Identity(-1, -1), commit=commit)) is MAPPING
    assert t.transactions.describe("t") == before


# --- unknown ---


def test_an_unknown_id_knows_init_only() -> None:
    t = TxnDriver()
    who = Identity(1_001, 0)
    assert error(t.call_add(who, P0)) is MAPPING
    assert error(t.call_verify(who, P0)) is MAPPING
    assert error(t.call_end(who, commit=True)) is MAPPING
    assert error(t.call_end(who, commit=False, version=4)) is MAPPING
    assert not t.transactions.by_id
    assert t.writes_asked == 0
    assert t.init() == (1_001, 0)
    t.assert_state("Empty")


def test_an_unknown_id_accepts_a_producer_that_knows_it() -> None:
    """It was removed as unused, or the store was emptied: the producer gets a new id."""
    t = TxnDriver()
    assert t.init(Identity(77, 5)) == (1_001, 0)
