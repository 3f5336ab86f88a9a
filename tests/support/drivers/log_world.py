"""Writers of one log in a world without I/O: a store, workers that share it, and producers.

Everything a writer asks for becomes pending, and the test decides when it happens, or fails. The
world knows every batch that was ever stored or lost, and checks each acknowledgement as it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from moldau.broker.errors import (
    ErrorCode,
    KafkaError,
    StoreDown,
    StoreFault,
    StoreRefused,
    StoreUnavailable,
)
from moldau.broker.log.log import Waiters
from moldau.broker.log.state.log_state import LogState
from moldau.broker.log.state.view import LogView, TailCache
from moldau.broker.log.writing.append import Append
from moldau.broker.log.writing.append_queue import InFlightEntry
from moldau.broker.log.writing.phases import Phase
from moldau.broker.log.writing.writer import PartitionWriter
from moldau.broker.store.replication import NEVER
from moldau.broker.store.streams import Entry
from moldau.broker.store_loss.epochs import Epoch, Epochs
from moldau.broker.wire.batch import headers, read_header
from moldau.broker.wire.records import read_records
from tests.support.raw.client import make_batch

RESERVED_AHEAD = 6
LOST = StoreUnavailable("the connection was lost")
DOWN = StoreDown("there is no connection")
TAKEN = StoreRefused("ERR The ID specified in XADD is equal or smaller than the target's last id")


class SimulatedStore:
    """One stream, as Redis keeps it, and what is stored beside it."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.token = 0
        self.replicas = 0
        self.epochs = Epochs()
        self.is_deleted = False
        self._last_id = -1
        self._proved = 0
        self._reserved: dict[int, int] = {}  # by worker
        self._ceiling = 0  # the largest offset that was ever reserved
        self.now = 0.0
        self.ever: set[tuple[bytes, int]] = set()  # values and the offsets they once had
        self.lost: set[bytes] = set()

    def values(self) -> list[tuple[bytes, int]]:
        return [found for entry in self.entries for found in _values(entry)]

    @property
    def end(self) -> int:
        return list(headers(self.entries[-1].blob))[-1].next_offset if self.entries else 0

    def append(self, worker: int, base: int, blob: bytes, nonce: bytes) -> Any:
        if self.is_deleted:
            return None
        if base <= self._last_id:
            return TAKEN
        entry = Entry(base, blob, nonce)
        assert base == max(self.end, self.epochs.start), "a gap that no epoch explains"
        self.entries.append(entry)
        assert self.end <= self._reserved.get(worker, 0), "an offset that was not reserved"
        self._last_id = base
        self.ever.update(_values(entry))
        return b"%d-1" % base

    def read(self, offset: int, limit: int) -> list[Entry]:
        return [entry for entry in self.entries if entry.base >= offset][:limit]

    def at(self, base: int) -> Entry | None:
        """What XRANGE with COUNT 1 finds from there on."""
        return next(iter(self.read(base, 1)), None)

    @property
    def is_proved(self) -> bool:
        """Was the log loaded in this history? Until then nothing can be reserved."""
        return self._proved == self.token

    def reserve(self, worker: int, ceiling: int) -> int:
        self._reserved[worker] = max(self._reserved.get(worker, 0), ceiling)
        self._ceiling = max(self._ceiling, ceiling)
        return self._reserved[worker]

    def load(self, worker: int) -> tuple[LogState, int]:
        """The state of the log; a log that may have lost its end begins a new epoch first."""
        if not self.is_proved:
            self._proved = self.token
            if self._ceiling > self.end:
                number, end = self.epochs.current + 1, max(self.end, self.epochs.start)
                start = max(self._ceiling, end)
                self.epochs = Epochs((*self.epochs.all, Epoch(number, start, end)))
                self._last_id = start - 1
            self._reserved.clear()
        return self.state(), self._reserved.get(worker, 0)

    def state(self) -> LogState:
        state = LogState()
        for entry in self.entries:
            state.apply(entry.blob)
        state.begin_epoch(self.epochs.start)
        return state

    def change(self, lost_entries: int) -> None:
        """Another history begins, with less at the end of the log."""
        self.token += 1
        if lost_entries:
            for entry in self.entries[-lost_entries:]:
                self.lost.update(value for value, _ in _values(entry))
            del self.entries[-lost_entries:]


def _values(entry: Entry) -> list[tuple[bytes, int]]:
    found, at = [], 0
    for header in headers(entry.blob):
        record = next(iter(read_records(entry.blob[at : at + header.size], 1 << 20)))
        assert record.value is not None
        found.append((record.value, header.base_offset))
        at += header.size
    return found


class Reserved:
    ceiling = 0
    extend_at = 0


class Worker:
    """One writer, and the effects it has asked for (`Effects`, `Replicas`, `Verifies`)."""

    def __init__(self, number: int, store: SimulatedStore) -> None:
        self.number = number
        self.store = store
        self.is_up = True
        self.token = store.token  # as far as it knows
        self.pending: list[tuple[str, Any]] = []
        self.late: list[InFlightEntry] = []  # sent on a lost connection, still on their way
        self.waiting: list[Callable[[int], None]] = []  # for replicas
        self.reservation = Reserved()
        self.view = LogView("topic", 0, b"key", TailCache(1 << 20).tail())
        self.writer = PartitionWriter(
            self, self.view, Waiters(), self, self.reservation, self, clock=lambda: store.now
        )

    # --- effects ---

    def end_turn(self) -> None:
        self.pending.append(("turn", None))

    def send(self, entry: InFlightEntry) -> None:
        self.pending.append(("send" if self.is_up else "down", entry))

    def read(self, offset: int, count: int) -> None:
        self.pending.append(("read", (offset, count)))

    def load(self) -> None:
        self.pending.append(("load", None))

    def reserve(self, end: int) -> None:
        if not any(what == "reserve" for what, _ in self.pending):
            self.pending.append(("reserve", end))

    def find(self, entry: InFlightEntry) -> None:
        self.pending.append(("find", entry))

    def recover(self, entry: InFlightEntry) -> None:
        self.pending.append(("recover", entry))

    def stream_missing(self) -> None:
        self.writer.gone()

    def appended(self, entry: InFlightEntry) -> None: ...
    def conflict(self) -> None: ...
    def refused(self, entry: InFlightEntry, fault: BaseException) -> None: ...
    def wake_leader(self) -> None: ...
    def ready(self) -> None: ...
    def verify(self, *_: Any, **__: Any) -> None: ...

    @property
    def replicas(self) -> int:
        return self.store.replicas

    def when_replicated(self, done: Callable[[int], None]) -> None:
        self.waiting.append(done)

    # --- what happens ---

    def happen(self, index: int, *, fails: bool = False) -> None:
        """One of the pending effects; `fails`: the store refuses, or the reply is lost."""
        what, about = self.pending.pop(index % len(self.pending))
        fault: StoreFault | None = None if self.is_up else DOWN
        if fails and self.is_up:
            fault = StoreRefused("ERR busy")
        match what:
            case "turn":
                self.writer.turn_ended()
            case "send":
                self.writer.replied(fault or self._append(about))
            case "lost" | "down":
                self.writer.replied(LOST if what == "lost" else DOWN)
            case "read":
                self.writer.entries_read(fault or self.store.read(*about))
            case "reserve" if fault is not None:
                self.writer.reserved(fault)
            case "reserve" if not self.store.is_proved:
                self.writer.reserved(False)
            case "reserve":
                self.reservation.ceiling = self.store.reserve(self.number, about + RESERVED_AHEAD)
                self.reservation.extend_at = self.reservation.ceiling - RESERVED_AHEAD // 2
                self.writer.reserved(True)
            case "load" if fault is not None:
                self.writer.load_failed(fault)
            case "load":
                self._load()
                self.writer.loaded()
            case "find" | "recover" if fault is not None:
                self.pending.append((what, about))  # until the store answers
            case "find":
                if self.writer.is_resolving(about):
                    self.writer.found(about, self.store.at(about.base))
            case "recover":
                if self.writer.is_recovering(about):
                    self._load()
                    self.writer.recovered(about, self.store.at(about.base))

    def go_on(self, until: str = "") -> None:
        """Everything that is pending, and what it leads to; `until` an effect of this kind."""
        for _ in range(50):
            if not self.pending or self.pending[0][0] == until:
                return
            self.happen(0)

    def _append(self, entry: InFlightEntry) -> Any:
        blob = b"".join(bytes(part) for part in entry.parts)
        return self.store.append(self.number, entry.base, blob, entry.nonce)

    def _load(self) -> None:
        if self.writer.phase is Phase.GONE:
            return
        state, self.reservation.ceiling = self.store.load(self.number)
        self.reservation.extend_at = self.reservation.ceiling
        self.view.epochs = self.store.epochs
        self.writer.state_loaded(state)

    def replicated(self, reached: int) -> None:
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done(reached)

    def cut(self, fate: str, *, hears: bool = True) -> None:
        """Lose the connection. An entry on its way is lost, stored, or arrives some time later.

        `hears`: the writer is told at once, else when another connection is up.
        """
        if not self.is_up:
            return
        self.is_up = False
        unanswered, self.pending = self.pending, []
        for what, about in unanswered:
            if what == "send":
                if fate == "stored":
                    self._append(about)
                elif fate == "late":
                    self.late.append(about)
                self.pending.append(("lost", about))
            else:
                self.pending.append((what, about))
        if hears:
            self._hear_of("lost")

    def _hear_of(self, what: str) -> None:
        """Every append that was lost, or was never sent."""
        while found := [at for at, one in enumerate(self.pending) if one[0] == what]:
            self.happen(found[0])

    def arrive_late(self) -> None:
        for entry in self.late:
            self._append(entry)
        self.late.clear()

    def connect(self) -> None:
        self._hear_of("down")
        self.is_up = True
        if self.token != self.store.token:
            self.token = self.store.token
            self.late.clear()
            self.replicated(NEVER)
            self.writer.store_changed()
        self._hear_of("lost")

    def receive(self, skipped: int) -> None:
        """The watcher's notice of entries, perhaps of the newest only."""
        if self.is_up and (entries := self.store.entries[skipped:]):
            self.writer.received(entries)


class SimulatedAppend(Append):
    """A batch of one record; its acknowledgement is checked against the store."""

    __slots__ = ("answers", "error", "on_done", "store", "value")

    def __init__(
        self,
        store: SimulatedStore,
        value: bytes,
        batch: bytearray,
        replicas: int,
        on_done: Callable[[SimulatedAppend], None],
    ) -> None:
        super().__init__(batch, read_header(batch), replicas)
        self.store = store
        self.value = value
        self.on_done = on_done
        self.answers = 0
        self.error: BaseException | None = None

    def done(self, error: BaseException | None, base_offset: int, timestamp: int) -> None:
        self.answers += 1
        assert self.answers == 1, "answered twice"
        self.error = error
        if error is None:
            assert (self.value, base_offset) in self.store.ever, "acknowledged and never stored"
            now = [offset for value, offset in self.store.values() if value == self.value]
            assert now in ([base_offset], []), "acknowledged at another offset"
            assert now or self.value in self.store.lost, "acknowledged and not stored"
        self.on_done(self)


class Producer:
    """An idempotent producer: up to five batches out, sent again in order until acknowledged."""

    MOST_OUT = 5

    def __init__(self, number: int, store: SimulatedStore) -> None:
        self.number = number
        self.store = store
        self.acknowledged: list[bytes] = []
        self.is_fenced = False  # out of order: a client would begin a new epoch
        self._next = 0
        self._unacknowledged: dict[int, SimulatedAppend | None] = {}  # by sequence; None: to send

    def produce(self, worker: Worker, replicas: int) -> None:
        # Replies of a connection come in order, so those that are out follow one another.
        first = min(self._unacknowledged, default=self._next)
        is_full = self._next - first >= self.MOST_OUT
        if not is_full and not (self._is_out and self._has_failed):
            self._unacknowledged[self._next] = None
            self._next += 1
            self._send_all(worker, replicas)

    @property
    def _is_out(self) -> bool:
        return any(append is not None for append in self._unacknowledged.values())

    @property
    def _has_failed(self) -> bool:
        return any(append is None for append in self._unacknowledged.values())

    def send(self, worker: Worker, replicas: int) -> None:
        """Send again what has failed, in order, once every batch behind it has been answered."""
        if not self._is_out:
            self._send_all(worker, replicas)

    def _send_all(self, worker: Worker, replicas: int) -> None:
        for sequence in sorted(self._unacknowledged):
            if self._unacknowledged.get(sequence, self) is None and not self.is_fenced:
                self._send(sequence, worker, replicas)

    def _send(self, sequence: int, worker: Worker, replicas: int) -> None:
        value = b"%d/%d" % (self.number, sequence)
        batch = make_batch(
            [(None, value, 1_000)],
            producer_id=self.number, producer_epoch=0, base_sequence=sequence,
        )  # fmt: skip

        def done(append: SimulatedAppend) -> None:
            error = append.error
            if self._unacknowledged.get(sequence) is not append:
                return  # of a connection that the producer has given up
            if error is None:
                del self._unacknowledged[sequence]
                self.acknowledged.append(value)
            elif isinstance(error, KafkaError) and error.code in (
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ):
                self.is_fenced = True
            else:
                self._unacknowledged[sequence] = None

        append = SimulatedAppend(self.store, value, batch, replicas, done)
        self._unacknowledged[sequence] = append
        worker.writer.append(append)

    def give_up(self, *, times_out: bool) -> None:
        """Send everything again: the connection was lost, or the request has timed out."""
        for sequence, append in self._unacknowledged.items():
            if append is not None and times_out:
                append.given_up = True
            self._unacknowledged[sequence] = None

    @property
    def is_waiting(self) -> bool:
        return bool(self._unacknowledged) and not self.is_fenced


class World:
    def __init__(self, workers: int, producers: int) -> None:
        self.store = SimulatedStore()
        self.workers = [Worker(number, self.store) for number in range(workers)]
        self.producers = [Producer(number, self.store) for number in range(producers)]
        self.plain: list[SimulatedAppend] = []
        self._names = count()

    def produce_plain(self, worker: Worker, replicas: int) -> None:
        value = b"plain/%d" % next(self._names)
        batch = make_batch([(None, value, 1_000)])
        append = SimulatedAppend(self.store, value, batch, replicas, lambda append: None)
        self.plain.append(append)
        worker.writer.append(append)

    def change_store(self, lost_entries: int, *, fate: str, hears: bool) -> None:
        """Every worker loses its connection, and finds another history when it is back."""
        for worker in self.workers:
            worker.cut(fate, hears=hears)
            worker.late.clear()
        self.store.change(lost_entries)

    def settle(self) -> None:
        """Everything works from now on: until nothing is pending."""
        for _ in range(1_000):
            busy = False
            for worker in self.workers:
                if not worker.is_up:
                    worker.connect()
                worker.arrive_late()
                while worker.pending or worker.waiting:
                    busy = True
                    worker.replicated(worker.replicas)
                    if worker.pending:
                        worker.happen(0)
            for producer in self.producers:
                if producer.is_waiting:
                    busy = True
                    producer.give_up(times_out=False)
                    producer.send(self.workers[producer.number % len(self.workers)], 0)
            if not busy:
                return
            self.store.now += 60
        raise AssertionError("it does not come to rest")

    def check(self) -> None:
        """Every acknowledged batch is in the log once, and each producer's are in order."""
        values = [value for value, _ in self.store.values()]
        assert len(values) == len(set(values)), "stored twice"
        for append in self.plain:
            refused = isinstance(append.error, StoreFault)
            assert not (refused and append.value in values), "in the log, and said not to be"
        for producer in self.producers:
            prefix = b"%d/" % producer.number
            stored = [int(value.split(b"/")[1]) for value in values if value.startswith(prefix)]
            assert stored == sorted(stored), "out of order"
            if not self.store.lost and stored:
                assert stored == list(range(len(stored))), "a batch was skipped"
            missing = set(producer.acknowledged) - set(values) - self.store.lost
            assert not missing, f"acknowledged and not in the log: {missing}"
