"""What transactional ids run in for tests: virtual time, a dict as the store, calls answered once.

A call that is answered twice, a timer cancelled that is not armed, two writes at once, markers
whose decision is not stored: all of them fail the test at once, whatever it is about.
"""

from typing import Any, Generic, TypeVar

from moldau.broker.errors import ErrorCode
from moldau.broker.machine import (
    ArmTimer,
    CancelTimer,
    Persisted,
    Reply,
    TimerFired,
    TimerKey,
)
from moldau.broker.txn.effects import Effect, Persist, StateChanged, WriteMarkers
from moldau.broker.txn.events import Event, MarkersWritten
from moldau.broker.txn.record import TxnRecord, TxnState, decode, encode
from moldau.broker.txn.transaction_data import TxnConfig
from moldau.broker.txn.transactions import Transactions

START_MS = 1_700_000_000_000
T = TypeVar("T")


class Call(Generic[T]):
    """A request and, once it is answered, its answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answers: list[T] = []

    @property
    def waits(self) -> bool:
        return not self.answers

    @property
    def answer(self) -> T:
        assert self.answers, f"{self} still waits"
        return self.answers[0]

    def __repr__(self) -> str:
        return f"<{self.name}>"


class TxnWorld:
    """The transactional ids of one slot, what runs their effects, and what became of them."""

    def __init__(self, **config: int) -> None:
        self.config = TxnConfig(**config)
        self.now = START_MS
        self.timers: dict[TimerKey, int] = {}
        self.stored: dict[str, bytes] = {}
        self.writes_asked = 0
        self.hold_writes = False
        """Writes wait for `write_done`; otherwise they succeed at once."""
        self.hold_markers = False
        """Markers wait for `markers_done`; otherwise they are written at once."""
        self.writes: dict[str, Persist] = {}
        self.markers: list[WriteMarkers] = []
        """Those that are being written."""
        self.all_markers: list[WriteMarkers] = []
        """Everything that was ever asked for."""
        self.is_stale = False
        """Markers then come again for decisions that the store has lost."""
        self.changes: list[StateChanged] = []
        self.calls: list[Call[Any]] = []
        self.next_producer_id = 1_000
        self.has_producer_ids = True
        self.transactions = self._new()
        self.transactions.start_loading(0)
        self.run(self.transactions.finish_loading(0, [], self.now))

    # --- time, store and worker ---

    def sleep(self, ms: int) -> None:
        """Let time pass; every timer fires at its time."""
        until = self.now + ms
        while True:
            due = min(self.timers.items(), key=lambda item: item[1], default=None)
            if due is None or due[1] > until:
                break
            self.now = max(self.now, due[1])
            self.fire(due[0])
        self.now = until

    def fire(self, key: TimerKey) -> None:
        self.timers.pop(key, None)
        self.send(key.name, TimerFired(key))

    def write_done(
        self,
        transactional_id: str = "t",
        error: ErrorCode = ErrorCode.NONE,
        *,
        stored: bool | None = None,
    ) -> None:
        """The write in flight ends. `stored` with an error: it happened all the same."""
        write = self.writes.pop(transactional_id)
        if error is ErrorCode.NONE if stored is None else stored:
            self.store(write)
        self.send(transactional_id, Persisted(write.revision, error))

    def fail_write(self, transactional_id: str = "t", *, stored: bool = False) -> None:
        self.write_done(transactional_id, ErrorCode.COORDINATOR_NOT_AVAILABLE, stored=stored)

    def store(self, write: Persist) -> None:
        if write.record is None:
            self.stored.pop(write.name, None)
        else:
            self.stored[write.name] = encode(write.record)

    def markers_done(self, transactional_id: str = "t") -> None:
        """Everything that was asked for is written."""
        done = [one for one in self.markers if one.transactional_id == transactional_id]
        for markers in done:
            self.markers.remove(markers)
        for markers in done:
            self.send(transactional_id, MarkersWritten(markers.number))

    def restart(self, *, is_stale: bool = False) -> None:
        """The worker is killed and comes back: nothing is left but the store."""
        self.timers.clear()
        self.writes.clear()
        self.markers.clear()
        self.calls = [call for call in self.calls if not call.waits]
        self.is_stale = self.is_stale or is_stale
        self.transactions = self._new()
        self.transactions.start_loading(0)
        found = [decode(record) for record in self.stored.values()]
        self.run(self.transactions.finish_loading(0, found, self.now, is_stale=is_stale))

    def give_up(self) -> None:
        self.run(self.transactions.give_up(0, self.now))
        self.writes.clear()
        self.markers.clear()

    def lose_tail(self, kept: dict[str, bytes], *, require_abort: bool = False) -> None:
        """The store is back with what it had before, under a living worker."""
        self.is_stale = True
        self.stored = dict(kept)
        found = [decode(record) for record in kept.values()]
        effects = self.transactions.store_again(0, found, self.now, require_abort=require_abort)
        self.run(effects)

    def send(self, transactional_id: str, event: Event) -> None:
        self.run(self.transactions.handle(transactional_id, event, self.now))

    # --- what became of it ---

    def record(self, transactional_id: str = "t") -> TxnRecord:
        """What is stored."""
        return decode(self.stored[transactional_id])

    def state(self, transactional_id: str = "t") -> TxnState | None:
        view = self.transactions.describe(transactional_id)
        return None if view is None else view.state

    @property
    def waiting(self) -> list[Call[Any]]:
        return [call for call in self.calls if call.waits]

    # --- underneath ---

    def _new(self) -> Transactions:
        return Transactions(self.config, self._take_producer_id, lambda _: 0)

    def _take_producer_id(self) -> int:
        if not self.has_producer_ids:
            return -1
        self.next_producer_id += 1
        return self.next_producer_id

    def call(self, name: str) -> Call[Any]:
        call: Call[Any] = Call(name)
        self.calls.append(call)
        return call

    def run(self, effects: list[Effect]) -> None:
        begun: list[Persist] = []
        asked: list[WriteMarkers] = []
        for effect in effects:
            match effect:
                case Reply(call=Call() as call, answer=answer):
                    assert not call.answers, f"{call} is answered twice: {answer}"
                    call.answers.append(answer)
                    self.answered(call)
                case ArmTimer(key=key, at_ms=at_ms):
                    self.timers[key] = at_ms
                case CancelTimer(key=key):
                    assert key in self.timers, f"{key} is cancelled but not armed"
                    del self.timers[key]
                case Persist():
                    self._begin(effect)
                    begun.append(effect)
                case WriteMarkers():
                    self._ask(effect)
                    asked.append(effect)
                case StateChanged():
                    self.changes.append(effect)
                case _:
                    raise AssertionError(f"unknown effect {effect}")
        if not self.hold_writes:
            for write in begun:
                self.write_done(write.name)
        if not self.hold_markers:
            for markers in asked:
                if markers in self.markers:
                    self.markers.remove(markers)
                    self.send(markers.transactional_id, MarkersWritten(markers.number))

    def answered(self, call: Call[Any]) -> None:
        """Called with every call that is answered."""

    def _begin(self, write: Persist) -> None:
        self.writes_asked += 1
        name = write.name
        assert name not in self.writes, "two writes at once"
        if name in self.stored:
            assert write.revision > self.record(name).revision, "an old revision"
        assert write.record is None or write.record.revision == write.revision
        self.writes[name] = write

    def _ask(self, markers: WriteMarkers) -> None:
        assert markers.partitions, "markers for no place"
        if not self.is_stale:
            self._assert_decided(markers)
        self.markers.append(markers)
        self.all_markers.append(markers)

    def _assert_decided(self, markers: WriteMarkers) -> None:
        stored = self.record(markers.transactional_id)
        assert stored.state == ("PrepareCommit" if markers.commit else "PrepareAbort")
        assert stored.number == markers.number
        assert (stored.producer_id, stored.producer_epoch) == (
            markers.producer_id,
            markers.producer_epoch,
        )
        assert stored.partitions == markers.partitions
