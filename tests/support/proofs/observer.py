"""Everything any client ever learned of a topic, and the proof that an offset names one record.

Clients note what they were acknowledged (`acknowledged`) and what they read (`seen`); a watch reads
each worker all along; `look` reads every worker from the start. Whatever happens to the store,

- no offset is ever seen with two different records, on any worker, at any time;
- all workers have the same end and the same records;
- offsets are dense, but for the gaps recorded with the log (`epochs` of its state); not those of
  native topics, which come from the store's clock;
- a record that was acknowledged or read is where it was, or its offset is in a recorded gap; what
  was acknowledged after the store's last loss is there;
- a batch carries the leader epoch in which its offset lies;
- a producer id is used by one producer, and an idempotent producer's record is there at most once.
"""

import hashlib
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import redis

from moldau.broker.errors import ErrorCode
from moldau.broker.store import keys
from moldau.broker.store.topics import TopicRecord
from moldau.broker.wire.batch import read_header
from moldau.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.broker.wire.records import Record, read_records
from tests.support.brokers.running import wait_until
from tests.support.raw.calls import LATEST, list_offset
from tests.support.raw.client import DECODED_LIMIT, NAMED_FETCH, RawClient, batches_in

PATIENCE_S = 40.0
ACKNOWLEDGED = "acknowledged"
NOT_THERE = (ConnectionError, TimeoutError, OSError)
# What says "not now".
RETRIABLE = {
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


class Epoch(NamedTuple):
    number: int
    start: int
    previous_end: int


class Known(NamedTuple):
    """A record at an offset, by whom and when it was learned last."""

    digest: bytes
    name: bytes
    source: str
    at: float


class Stored(NamedTuple):
    offset: int
    digest: bytes
    name: bytes
    leader_epoch: int
    producer_id: int


class View(NamedTuple):
    """A partition as a worker serves it."""

    records: list[Stored]
    end: int


def digest_of(value: bytes | None) -> bytes:
    return hashlib.blake2b(repr(value).encode(), digest_size=12).digest()


def name_of(value: bytes | None) -> bytes:
    """What a record's value begins with: `<producer>:<number>|…`."""
    return (value or b"").partition(b"|")[0][:60]


class Observer:
    """See the module. Its methods may be called from any thread.

    A record is known by its value, which no two records of a test share.
    """

    def __init__(
        self, ports: Sequence[int], topic: str, partitions: int = 1, *, native: bool = False
    ) -> None:
        self.ports = list(ports)
        self._native = native
        self.topic = topic
        self.partitions = partitions
        self.idempotent: set[bytes] = set()  # names of producers
        self.faults: list[str] = []  # what must not have happened
        self._lock = threading.Lock()
        self._known: dict[tuple[int, int], Known] = {}
        self._acknowledged: dict[tuple[int, int], Known] = {}
        self._lost_at = 0.0
        self._watches: list[WorkerWatch] = []

    # --- learning ---

    def acknowledged(self, partition: int, offset: int, value: bytes | None) -> None:
        known = Known(digest_of(value), name_of(value), ACKNOWLEDGED, time.monotonic())
        with self._lock:
            self._note(partition, offset, known)
            self._acknowledged[partition, offset] = known

    def seen(self, partition: int, offset: int, value: bytes | None, source: str) -> None:
        known = Known(digest_of(value), name_of(value), source, time.monotonic())
        with self._lock:
            self._note(partition, offset, known)

    def _note(self, partition: int, offset: int, known: Known) -> None:
        before = self._known.get((partition, offset))
        if before is not None and before.digest != known.digest:
            self.faults.append(
                f"{partition}/{offset}: {before.name!r} ({before.source}), "
                f"then {known.name!r} ({known.source})"
            )
        else:
            self._known[partition, offset] = known

    def must_not(self, what: str) -> None:
        with self._lock:
            self.faults.append(what)

    def lost_something(self) -> None:
        """The store is down and will come back without its tail: from now on nothing is lost."""
        self._lost_at = time.monotonic()

    def count(self) -> int:
        """How many records were acknowledged."""
        return len(self._acknowledged)

    def known_records(self, partition: int = 0) -> dict[int, bytes]:
        """The records that were acknowledged until now, by offset."""
        with self._lock:
            return {
                at: one.digest for (of, at), one in self._acknowledged.items() if of == partition
            }

    # --- watching ---

    def watch(self) -> None:
        """Read every worker all along."""
        self._watches = [WorkerWatch(self, port) for port in self.ports]
        for watch in self._watches:
            watch.start()

    def stop_watching(self) -> None:
        for watch in self._watches:
            watch.told.set()
        for watch in self._watches:
            watch.join(PATIENCE_S)
            assert not watch.is_alive()
        self._watches = []

    def look(self) -> list[list[View]]:
        """Every partition, from its start, on every worker."""
        views = []
        for partition in range(self.partitions):
            ends = self._same_end(partition)
            found = [self._read(port, partition, ends) for port in self.ports]
            views.append(found)
        return views

    def _same_end(self, partition: int) -> int:
        """Wait for one end at all workers. Appends have ended, so it takes a moment at most."""
        ends: list[tuple[int, int]] = []

        def agree() -> bool:
            ends.clear()
            for port in self.ports:
                with RawClient(port) as client:
                    answer = list_offset(client, self.topic, LATEST, partition=partition)
                ends.append((answer.error_code, answer.offset))
            return len(set(ends)) == 1 and ends[0][0] == 0

        deadline = time.monotonic() + PATIENCE_S
        while not agree():
            different = len({end for code, end in ends if code == 0}) > 1
            patience = 10.0 if different else 0.0
            assert time.monotonic() < deadline - patience, f"ends of {partition}: {ends}"
            time.sleep(0.05)
        return ends[0][1]

    def _read(self, port: int, partition: int, end: int) -> View:
        records: list[Stored] = []
        offset = 0
        deadline = time.monotonic() + 30
        with RawClient(port) as client:
            while offset < end:
                answer = client.fetch(self.topic, offset, partition=partition, max_bytes=4 << 20)
                where = f"{self.topic}-{partition} at {offset} on port {port}"
                if answer.error_code in RETRIABLE and time.monotonic() < deadline:
                    time.sleep(0.05)  # its connections may still be those to the former master
                    continue
                assert answer.error_code == 0, f"{where}: {ErrorCode(answer.error_code).name}"
                batches = batches_in(answer)
                if not batches:
                    break  # a gap at the end: density says whether it is recorded
                for batch in batches:
                    header = read_header(batch)
                    for record in read_records(batch, DECODED_LIMIT):
                        self.seen(partition, record.offset, record.value, f"port {port}")
                        records.append(
                            stored_record(record, header.leader_epoch, header.producer_id)
                        )
                    offset = header.next_offset
        return View(records, end)

    # --- the proof ---

    def check(self, store_url: str, *, may_lose: bool = True) -> list[View]:
        """Everything the module says; the partitions as all workers serve them."""
        views = []
        for partition, found in enumerate(self.look()):
            epochs = read_epochs(store_url, self.topic, partition)
            for port, view in zip(self.ports, found, strict=True):
                assert view == found[0], (
                    f"partition {partition}: port {port} serves {_difference(view, found[0])}"
                )
            if not self._native:
                self._check_dense(partition, found[0], epochs)
            self._check_kept(partition, found[0], epochs, may_lose)
            views.append(found[0])
        self._check_producers(views)
        with self._lock:
            assert not self.faults, "\n".join(self.faults[:20])
        return views

    def _check_dense(self, partition: int, view: View, epochs: list[Epoch]) -> None:
        expected, current, coming = 0, 0, list(epochs)

        def pass_gaps() -> None:
            nonlocal expected, current
            while coming and coming[0].previous_end == expected:
                expected, current = coming[0].start, coming[0].number
                del coming[0]

        for record in view.records:
            pass_gaps()
            where = f"partition {partition}: {record.name!r} at {record.offset}"
            assert record.offset == expected, f"{where}, not {expected}; epochs {epochs}"
            assert record.leader_epoch == current, f"{where} has epoch {record.leader_epoch}"
            expected += 1
        pass_gaps()
        assert view.end == expected, (
            f"partition {partition} ends at {view.end}, its records at {expected}; {epochs}"
        )
        assert not coming, f"partition {partition}: epochs beyond its end {view.end}: {coming}"

    def _check_kept(self, partition: int, view: View, epochs: list[Epoch], may_lose: bool) -> None:
        there = {record.offset: record for record in view.records}
        with self._lock:
            learned = [*self._known.items(), *self._acknowledged.items()]
        for (place, offset), known in learned:
            if place != partition:
                continue
            record = there.get(offset)
            if record is not None:
                assert record.digest == known.digest, (
                    f"{partition}/{offset}: {known.name!r} ({known.source}) is {record.name!r} now"
                )
                continue
            what = f"{partition}/{offset}: {known.name!r} ({known.source}) is gone"
            assert may_lose, what
            # While the store is down, a worker may still serve what it has in memory.
            if known.source == ACKNOWLEDGED:
                assert known.at < self._lost_at, f"{what}, though the store lost nothing since"
            if self._native:
                continue
            assert any(epoch.previous_end <= offset < epoch.start for epoch in epochs), (
                f"{what} outside of every gap: {epochs}"
            )

    def _check_producers(self, views: Iterable[View]) -> None:
        users: dict[int, set[bytes]] = defaultdict(set)
        for partition, view in enumerate(views):
            found: set[bytes] = set()
            last: dict[bytes, int] = defaultdict(lambda: -1)
            for record in view.records:
                producer, _, number = record.name.partition(b":")
                if record.producer_id >= 0:
                    users[record.producer_id].add(producer)
                if producer not in self.idempotent:
                    continue
                assert record.name not in found, f"{partition}: {record.name!r} is there twice"
                assert int(number) > last[producer], f"{partition}: {record.name!r} is out of order"
                found.add(record.name)
                last[producer] = int(number)
        shared = {number: names for number, names in users.items() if len(names) > 1}
        assert not shared, f"producer ids given twice: {shared}"


def stored_record(record: Record, leader_epoch: int, producer_id: int) -> Stored:
    digest = digest_of(record.value)
    return Stored(record.offset, digest, name_of(record.value), leader_epoch, producer_id)


def _difference(one: View, other: View) -> str:
    if one.end != other.end:
        return f"an end of {one.end}, others {other.end}"
    first, second = ({record.offset: record for record in view.records} for view in (one, other))
    offsets = [at for at in sorted({*first, *second}) if first.get(at) != second.get(at)]
    return f"{len(offsets)} other records, the first at {offsets[0]}"


def read_epochs(store_url: str, topic: str, partition: int) -> list[Epoch]:
    """Read epochs from the log's stored state; a log that never lost anything has none."""
    with redis.Redis.from_url(store_url) as store:
        record: Any = store.hget(keys.TOPICS.decode(), topic)
        incarnation = msgspec.msgpack.decode(record, type=TopicRecord).incarnation if record else 0
        log = keys.stream(topic, incarnation, partition)
        text: Any = store.hget(keys.state(log).decode(), "epochs")
    return [Epoch(*map(int, word.split(b":"))) for word in (text or b"").split()]


def after_gaps(offset: int, epochs: Iterable[Epoch]) -> int:
    """Where a reader goes on from an offset."""
    for epoch in epochs:
        if epoch.previous_end <= offset < epoch.start:
            offset = epoch.start
    return offset


class WorkerWatch(threading.Thread):
    """Reads every partition from one worker, as a consumer does, and notes all of it."""

    def __init__(self, observer: Observer, port: int) -> None:
        super().__init__(name=f"watch of port {port}", daemon=True)
        self._observer = observer
        self._port = port
        self._offsets = dict.fromkeys(range(observer.partitions), 0)
        self._ends = dict.fromkeys(range(observer.partitions), 0)
        self.told = threading.Event()

    def run(self) -> None:
        client: RawClient | None = None
        while not self.told.is_set():
            try:
                client = client or RawClient(self._port, timeout=20)
                self._read(client)
            except NOT_THERE:
                if client is not None:
                    client.close()
                client = None
                time.sleep(0.05)
            except BaseException as fault:
                self._observer.must_not(f"port {self._port}: {fault!r}")
                break
        if client is not None:
            client.close()

    def _read(self, client: RawClient) -> None:
        observer = self._observer
        wanted = [
            FetchPartition(partition, fetch_offset=offset, partition_max_bytes=1 << 20)
            for partition, offset in self._offsets.items()
        ]
        request = FetchRequest(
            max_wait_ms=100, min_bytes=1, topics=[FetchTopic(observer.topic, partitions=wanted)]
        )
        for answer in client.call(request, NAMED_FETCH).responses[0].partitions:
            index = answer.partition_index
            if answer.error_code in RETRIABLE:
                time.sleep(0.02)
                continue
            where = f"port {self._port}, partition {index}, offset {self._offsets[index]}"
            if answer.error_code:
                observer.must_not(f"{where}: {ErrorCode(answer.error_code).name}")
                time.sleep(0.5)
                continue
            if answer.high_watermark < self._ends[index]:
                observer.must_not(
                    f"{where}: the end went from {self._ends[index]} to {answer.high_watermark}"
                )
            self._ends[index] = answer.high_watermark
            for batch in batches_in(answer):
                for record in read_records(batch, DECODED_LIMIT):
                    observer.seen(index, record.offset, record.value, self.name)
                self._offsets[index] = read_header(batch).next_offset


def until_answered(ports: Sequence[int], topic: str) -> None:
    """Wait until every worker serves the log again."""

    def served() -> bool:
        for port in ports:
            try:
                with RawClient(port) as client:
                    if list_offset(client, topic, LATEST).error_code:
                        return False
            except NOT_THERE:
                return False
        return True

    wait_until(served, PATIENCE_S, f"{topic} is served again")
