"""The ids of a worker: whose they are, what is shown of them, and their limits."""

from msgspec.structs import replace

from moldau.broker.errors import ErrorCode
from moldau.broker.machine import Persisted, TimerFired, TimerKey
from moldau.broker.txn.events import Init, MarkersWritten
from moldau.broker.txn.record import encode
from moldau.broker.txn.transaction_data import TimerKind, TxnConfig
from moldau.broker.txn.transactions import Transactions
from tests.support.drivers.txn_driver import GROUPS, P0, TxnDriver, error
from tests.support.drivers.txn_world import Call


def slot_of(transactional_id: str) -> int:
    return int(transactional_id.split("-")[1])


def test_7_5_another_workers_id() -> None:
    transactions = Transactions(TxnConfig(), lambda: 1, slot_of)
    transactions.start_loading(1)
    transactions.finish_loading(1, [], 0)
    transactions.start_loading(2)
    assert transactions.availability("t-1") is ErrorCode.NONE
    assert transactions.availability("t-2") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert transactions.availability("t-3") is ErrorCode.NOT_COORDINATOR
    (reply,) = transactions.handle("t-3", Init(Call("init"), 1), 0)
    assert reply.answer.error is ErrorCode.NOT_COORDINATOR  # type: ignore[union-attr]


def test_ids_belong_to_slots() -> None:
    transactions = Transactions(TxnConfig(), lambda: 1, slot_of)
    for slot in (1, 2):
        transactions.start_loading(slot)
        transactions.finish_loading(slot, [], 0)
        transactions.handle(f"t-{slot}", Init(Call("init"), 1), 0)
    (owned,) = transactions.of_slot(2)
    assert owned.transactional_id == "t-2"
    transactions.give_up(1, 0)
    assert list(transactions.by_id) == ["t-2"]
    assert not transactions.is_loaded(1)


def test_what_is_shown() -> None:
    t = TxnDriver()
    t.hold_markers = True
    assert t.transactions.describe("t") is None
    who = t.init()
    shown = t.transactions.describe("t")
    assert shown is not None
    assert (shown.state, shown.started_ms, shown.partitions) == ("Empty", -1, ())
    started = t.now
    t.add(who, P0, GROUPS)
    t.sleep(5)
    new = t.end(who, commit=True)
    t.init(name="u", timeout_ms=1_000)
    by_id = {one.transactional_id: one for one in t.transactions.list()}
    assert by_id.keys() == {"t", "u"}
    shown = by_id["t"]
    assert shown == t.transactions.describe("t")
    assert (shown.producer_id, shown.producer_epoch) == new
    assert (shown.state, shown.started_ms, shown.number) == ("PrepareCommit", started, 1)
    assert shown.partitions == (P0, GROUPS)
    assert by_id["u"].timeout_ms == 1_000


def test_an_id_that_is_not_stored_yet_is_not_shown() -> None:
    t = TxnDriver()
    t.hold_writes = True
    t.call_init()
    assert t.transactions.list() == []
    assert t.transactions.describe("t") is None


def test_events_of_ids_that_are_gone_are_ignored() -> None:
    t = TxnDriver()
    for event in (
        Persisted(1),
        MarkersWritten(1),
        TimerFired(TimerKey("t", TimerKind.TIMEOUT)),
    ):
        assert t.transactions.handle("t", event, t.now) == []


def test_a_timer_that_is_not_armed_or_fires_early() -> None:
    t = TxnDriver()
    who = t.init()
    key = TimerKey("t", TimerKind.TIMEOUT)
    assert t.transactions.handle("t", TimerFired(key), t.now) == []
    t.add(who, P0)
    t.fire(key)  # it is armed again for its time
    t.assert_state("Ongoing")
    assert t.armed(TimerKind.TIMEOUT) == 60_000


def test_other_limits_from_now_on() -> None:
    t = TxnDriver()
    t.init()
    t.transactions.use_config(replace(t.config, max_timeout_ms=10))
    assert error(t.call_init()) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert error(t.call_init(name="new")) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert t.init(timeout_ms=10)


def test_changes_of_state_are_reported() -> None:
    t = TxnDriver()
    who = t.init()
    t.add(who, P0)
    t.end(who, commit=False)
    t.sleep(8 * 24 * 3_600_000)
    t.run(t.transactions.expire(t.now))
    assert [(one.previous, one.state, one.number) for one in t.changes] == [
        (None, "Empty", 0),
        ("Empty", "Ongoing", 1),
        ("Ongoing", "PrepareAbort", 1),
        ("PrepareAbort", "CompleteAbort", 1),
        ("CompleteAbort", None, 1),
    ]


def test_numbers_wrap() -> None:
    t = TxnDriver()
    t.init()
    t.stored["t"] = encode(replace(t.record(), number=2**31 - 2))
    t.restart()
    who = t.init()
    assert t.add(who, P0) == 2**31 - 1
    who = t.end(who, commit=True)
    assert t.add(who, P0) == 1
    who = t.end(who, commit=True)
    assert [markers.number for markers in t.all_markers] == [2**31 - 1, 1]
