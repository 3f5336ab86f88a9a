"""The proof that a log kept its promises, from the log itself and what producers were answered.

- Offsets are dense from 0 to the end.
- Every acknowledged record is there exactly once, at the offset its producer was answered.
- No other record is there twice; an idempotent producer's records are all there.
- Each producer's records are in the order in which it sent them.
- Every worker serves the same bytes, to those who read now and to those who read all along.
"""

import hashlib
import threading
import time
from collections.abc import Iterable, Sequence

from moldau.broker.store.streams import Entry
from moldau.broker.wire.batch import headers, read_header, split_batches
from moldau.broker.wire.records import read_records
from tests.support.proofs.hammer import Report, Sent
from tests.support.raw.client import DECODED_LIMIT, RawClient

FETCH_BYTES = 4 << 20


def fetch_blob(
    client: RawClient, topic: str, partition: int, offset: int, **options: int
) -> tuple[bytes, int, int]:
    """Whole batches from an offset on, the offset after them, and the high watermark."""
    answer = client.fetch(topic, offset, partition=partition, max_bytes=FETCH_BYTES, **options)
    assert answer.error_code == 0, f"fetch {topic}-{partition} at {offset}: {answer.error_code}"
    records = answer.records or b""
    blob = b"".join(records) if isinstance(records, list) else bytes(records)
    following = offset
    for batch in split_batches(blob):
        header = read_header(batch)
        assert header.base_offset == following, f"{following} is missing at {header.base_offset}"
        following = header.next_offset
    assert following <= answer.high_watermark
    return blob, following, answer.high_watermark


def read_whole(port: int, topic: str, partition: int) -> bytes:
    """Every batch of a partition, as a worker serves it; offsets are dense."""
    blobs = []
    offset = 0
    with RawClient(port) as client:
        while True:
            blob, offset, end = fetch_blob(client, topic, partition, offset)
            blobs.append(blob)
            if offset == end:
                return b"".join(blobs)
            assert blob, f"nothing at {offset}, the end is {end}"


class Follower:
    """Reads a partition from a worker all along, as a consumer does, in a thread."""

    def __init__(self, port: int, topic: str, partition: int) -> None:
        self.where = f"{topic}-{partition} at port {port}"
        self._port, self._topic, self._partition = port, topic, partition
        self._digest = hashlib.sha256()
        self._stop_at: int | None = None
        self._fault: BaseException | None = None
        self.offset = 0
        self.lost_connections = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        client: RawClient | None = None
        try:
            while self._stop_at is None or self.offset < self._stop_at:
                try:
                    client = client or RawClient(self._port, timeout=20)
                    self._read(client)
                except (ConnectionError, TimeoutError, OSError):
                    # The worker was killed, say: its successor will do.
                    self.lost_connections += 1
                    if client is not None:
                        client.close()
                    client = None
                    time.sleep(0.05)
        except BaseException as fault:
            self._fault = fault
        finally:
            if client is not None:
                client.close()

    def _read(self, client: RawClient) -> None:
        try:
            blob, self.offset, _ = fetch_blob(
                client, self._topic, self._partition, self.offset, max_wait_ms=200, min_bytes=1
            )
        except AssertionError as fault:
            if not str(fault).endswith(": 56"):  # the store is down: what clients retry
                raise
            time.sleep(0.05)
        else:
            self._digest.update(blob)

    def finish(self, end: int) -> str:
        """Read up to `end`; a digest of everything read."""
        self._stop_at = end
        self._thread.join(60)
        assert not self._thread.is_alive(), f"{self.where}: stuck at {self.offset} of {end}"
        if self._fault is not None:
            raise self._fault
        assert self.offset == end, self.where
        return self._digest.hexdigest()


def prove(
    ports: Sequence[int],
    topic: str,
    partitions: Iterable[int],
    reports: Sequence[Report],
    followers: Sequence[Follower] = (),
) -> int:
    """Check everything the module says; gives the number of records in the log."""
    for report in reports:
        assert not report.fatal, f"{report.name}: {report.fatal} {report.refusals}"
    total = 0
    digests: dict[int, str] = {}
    ends: dict[int, int] = {}
    for partition in partitions:
        blobs = [read_whole(port, topic, partition) for port in ports]
        assert all(blob == blobs[0] for blob in blobs), "workers serve different bytes"
        values = written_by(blobs[0])
        prove_partition(partition, values, reports)
        digests[partition] = hashlib.sha256(blobs[0]).hexdigest()
        ends[partition] = len(values)
        total += len(values)
    for follower in followers:
        partition = follower._partition
        assert follower.finish(ends[partition]) == digests[partition], follower.where
    return total


def written_by(blob: bytes) -> list[bytes]:
    """Who wrote which offset."""
    values: list[bytes] = []
    for batch in split_batches(blob):
        for record in read_records(batch, DECODED_LIMIT):
            assert record.offset == len(values)
            assert record.value is not None
            values.append(record.value.partition(b"|")[0])
    return values


def stored_by(entries: Sequence[Entry]) -> list[bytes]:
    """The same of a log's entries, straight from the store: each begins where the last one ends."""
    expected = 0
    for entry in entries:
        assert entry.base == expected
        for header in headers(entry.blob):
            expected = header.next_offset
    return written_by(b"".join(entry.blob for entry in entries))


def prove_partition(partition: int, values: list[bytes], reports: Sequence[Report]) -> None:
    where: dict[bytes, list[int]] = {}
    for offset, value in enumerate(values):
        where.setdefault(value, []).append(offset)
    identical = Counted()
    for report in reports:
        sent = [one for one in report.sent if one.partition == partition]
        if report.identical:
            identical.add(sent)
        else:
            _prove_producer(report, sent, where)
    found = len(where.pop(b"same", []))
    assert identical.acknowledged <= found <= identical.sent, (
        f"partition {partition}: {found} identical records, {identical.acknowledged} acknowledged"
    )
    assert not where, f"sent by no producer: {sorted(where)[:5]}"


class Counted:
    """Records that look all the same can only be counted."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged = 0

    def add(self, batches: Iterable[Sent]) -> None:
        for batch in batches:
            self.sent += batch.count
            self.acknowledged += batch.count if batch.offset >= 0 else 0


def _prove_producer(report: Report, sent: list[Sent], where: dict[bytes, list[int]]) -> None:
    last = -1
    for batch in sent:
        for index in range(batch.count):
            name = b"%b:%d" % (report.name.encode(), batch.first + index)
            offsets = where.pop(name, [])
            assert len(offsets) <= 1, f"{name!r} is there {len(offsets)} times: {offsets}"
            if not offsets:
                assert batch.offset < 0, f"{name!r} was acknowledged at {batch.offset}, and is lost"
                assert not report.idempotent, f"{name!r} is lost"
                continue
            (offset,) = offsets
            if batch.offset >= 0:
                assert offset == batch.offset + index, f"{name!r}: {offset}, not {batch.offset}"
            assert offset > last, f"{name!r} at {offset} stands before its predecessor at {last}"
            last = offset
