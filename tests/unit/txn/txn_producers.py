"""Producers that use transactions as clients do, and a witness of everything they were answered.

The witness judges every answer at the moment it is given, against what the store has then.
"""

from __future__ import annotations

from typing import Any

from moldau.broker.errors import ErrorCode
from moldau.broker.txn.effects import AddAnswer, EndAnswer, InitAnswer, Persist, WriteMarkers
from moldau.broker.txn.events import Add, End, Init, Request
from moldau.broker.txn.record import TxnPartition, TxnRecord, decode
from moldau.broker.txn.transitions import NONE, Identity, previous
from tests.support.drivers.txn_driver import TxnDriver
from tests.support.drivers.txn_world import Call

RETRIED = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


class Asked(Call[Any]):
    """A call that knows what was asked."""

    event: Request
    transactional_id: str


class WitnessedDriver(TxnDriver):
    def __init__(self, **config: int) -> None:
        self.witness = Witness(self)
        super().__init__(**config)

    def ask(self, transactional_id: str, make: Any) -> Asked:
        call = Asked(transactional_id)
        call.transactional_id = transactional_id
        call.event = make(call)
        self.calls.append(call)
        self.send(transactional_id, call.event)
        return call

    def answered(self, call: Call[Any]) -> None:
        if isinstance(call, Asked):
            self.witness.answered(call)

    def store(self, write: Persist) -> None:
        super().store(write)
        if write.record is None:
            self.witness.removed.add(write.name)

    def _ask(self, markers: WriteMarkers) -> None:
        super()._ask(markers)
        self.witness.markers_asked(markers)


class Witness:
    def __init__(self, world: TxnDriver) -> None:
        self.world = world
        self.latest: dict[str, Identity] = {}
        """The identity that was answered last, by transactional id."""
        self.seen: dict[str, set[Identity]] = {}
        self.fenced: dict[str, set[Identity]] = {}
        """What was answered before the last new process."""
        self.removed: set[str] = set()
        """Ids that were removed from the store."""
        self.joined: dict[tuple[int, int], set[TxnPartition]] = {}
        """Places that were answered to be in the transaction, by producer id and number."""
        self.outcomes: dict[tuple[int, int], bool] = {}
        """How the transaction ended, as its producer was answered."""
        self.marked: dict[tuple[int, int], tuple[bool, set[TxnPartition]]] = {}
        """What was asked to be written."""

    # --- answers ---

    def answered(self, call: Asked) -> None:
        answer = call.answer
        if answer.error is not ErrorCode.NONE:
            return
        name, event = call.transactional_id, call.event
        asked_by = Identity(event.producer_id, event.producer_epoch)
        match answer:
            case InitAnswer():
                new = Identity(answer.producer_id, answer.producer_epoch)
                assert asked_by != NONE or new not in self.seen.get(name, ()), "it has an owner"
                self._identified(name, new)
                self._init_answered(name, asked_by)
            case AddAnswer():
                assert isinstance(event, Add)
                if event.partitions and not answer.missing:
                    self._add_answered(name, asked_by, event, answer)
            case EndAnswer():
                assert asked_by not in self.fenced.get(name, ()), f"{asked_by} ended though fenced"
                new = Identity(answer.producer_id, answer.producer_epoch)
                assert isinstance(event, End)
                if event.version < 5:
                    assert new == asked_by
                    assert new == self.latest[name]
                else:
                    assert new != asked_by
                self._identified(name, new)

    def _identified(self, name: str, new: Identity) -> None:
        """Epochs never go back, and no producer id comes back."""
        assert 0 <= new.producer_epoch <= 32_766
        latest = self.latest.get(name)
        seen = self.seen.setdefault(name, set())
        if latest is not None and new != latest:
            if new.producer_id == latest.producer_id:
                assert new.producer_epoch > latest.producer_epoch
            else:
                assert new.producer_id not in {one.producer_id for one in seen}
        others = [id_ for other, ids in self.seen.items() if other != name for id_ in ids]
        assert new.producer_id not in {one.producer_id for one in others}
        seen.add(new)
        self.latest[name] = new

    def _init_answered(self, name: str, asked_by: Identity) -> None:
        stored = self._stored(name)
        latest = self.latest[name]
        assert stored.state == "Empty"
        assert (stored.producer_id, stored.producer_epoch) == latest
        if asked_by == NONE or previous(stored) != asked_by:
            # A new process. A producer is taken for one if its id was removed, as in Kafka.
            assert asked_by == NONE or name in self.removed
            self.fenced[name] = self.seen[name] - {latest}
        else:
            assert asked_by not in self.fenced.get(name, ()), f"{asked_by} goes on though fenced"

    def _add_answered(self, name: str, asked_by: Identity, event: Add, answer: AddAnswer) -> None:
        assert asked_by == self.latest[name], f"{asked_by} joined, {self.latest[name]} is newer"
        stored = self._stored(name)
        assert stored.number == answer.number
        assert set(event.partitions) <= set(stored.partitions)
        assert not [one for one in self.world.markers if one.transactional_id == name]
        key = (asked_by.producer_id, answer.number)
        assert key not in self.marked, "joined a transaction that has ended"
        assert key not in self.outcomes
        self.joined.setdefault(key, set()).update(event.partitions)

    def ended(self, producer_id: int, number: int, commit: bool) -> None:
        """The producer of that transaction was answered how it ended."""
        key = (producer_id, number)
        assert self.outcomes.setdefault(key, commit) is commit
        self._check(key)

    def _stored(self, name: str) -> TxnRecord:
        return decode(self.world.stored[name])

    # --- markers ---

    def markers_asked(self, markers: WriteMarkers) -> None:
        key = (markers.producer_id, markers.number)
        places = set(markers.partitions)
        assert self.marked.setdefault(key, (markers.commit, places)) == (markers.commit, places)
        self._check(key)

    def _check(self, key: tuple[int, int]) -> None:
        if key in self.marked:
            commit, places = self.marked[key]
            assert self.outcomes.get(key, commit) is commit, f"{key}: not as it was answered"
            assert self.joined.get(key, set()) <= places, f"{key}: a place without a marker"

    def check_everything_has_ended(self) -> None:
        assert self.joined.keys() <= self.marked.keys()
        assert self.outcomes.keys() <= self.marked.keys()


class Producer:
    """A client process: one request at a time, repeated until it is answered for good."""

    def __init__(self, world: WitnessedDriver, name: str, *, v2: bool, timeout_ms: int) -> None:
        self.world = world
        self.name = name
        self.v2 = v2
        self.timeout_ms = timeout_ms
        self.identity = NONE
        self.number: int | None = None
        """Of its open transaction, as it was answered."""
        self.is_dead = False
        self.call: Asked | None = None
        self._request: Request | None = None

    # --- requests, whether they make sense or not ---

    def init(self) -> None:
        version = 5 if self.v2 else 3
        self._send(Init(None, self.timeout_ms, *self.identity, version=version))

    def add(self, *places: TxnPartition, verify_only: bool = False, waits: bool = True) -> None:
        version = 5 if self.v2 else 3
        self._send(Add(None, *self.identity, places, verify_only, version, waits))

    def end(self, commit: bool) -> None:
        self._send(End(None, *self.identity, commit, 5 if self.v2 else 4))

    def lose_connection(self) -> None:
        """The answer will not be heard; the request is sent again."""
        self.call = None

    def _send(self, request: Request) -> None:
        self._request = request
        self._send_again()

    def _send_again(self) -> None:
        request = self._request
        assert request is not None

        def make(call: object) -> Request:
            match request:
                case Init():
                    return Init(
                        call,
                        request.timeout_ms,
                        request.producer_id,
                        request.producer_epoch,
                        request.version,
                    )
                case Add():
                    return Add(
                        call,
                        request.producer_id,
                        request.producer_epoch,
                        request.partitions,
                        request.verify_only,
                        request.version,
                        request.waits,
                    )
                case End():
                    return End(
                        call,
                        request.producer_id,
                        request.producer_epoch,
                        request.commit,
                        request.version,
                    )

        self.call = self.world.ask(self.name, make)

    # --- answers ---

    @property
    def is_busy(self) -> bool:
        return self._request is not None

    def hear(self) -> None:
        """Read the answer to the last request, if there is one; send it again if need be."""
        request = self._request
        if request is None:
            return
        if self.call is None:
            self._send_again()
            return
        if self.call.waits:
            return
        answer, self.call = self.call.answer, None
        if answer.error in RETRIED:
            return  # sent again the next time
        self._request = None
        if answer.error is not ErrorCode.NONE:
            self._failed(answer.error)
            return
        match request:
            case Init():
                self.identity = Identity(answer.producer_id, answer.producer_epoch)
                self.number = None
            case Add(verify_only=False) if request.partitions:
                self.number = answer.number
            case End():
                if self.number is not None:
                    key = self.identity.producer_id, self.number
                    self.world.witness.ended(*key, request.commit)
                self.identity = Identity(answer.producer_id, answer.producer_epoch)
                self.number = None

    def _failed(self, error: ErrorCode) -> None:
        self.number = None
        if error is not ErrorCode.INVALID_TXN_STATE:
            self.is_dead = True

    def cooperate(self, places: list[TxnPartition], commit: bool) -> None:
        """The next step of a transaction."""
        self.hear()
        if self.is_dead or self.is_busy:
            return
        if self.identity == NONE:
            self.init()
        elif self.number is None:
            self.add(*places)
        else:
            self.end(commit)
        self.hear()
