"""A read_committed reader over a `RawClient`: what a consumer makes of the answers to its Fetch."""

from __future__ import annotations

from moldau.broker.wire.batch import CONTROL, TRANSACTIONAL, read_header
from moldau.broker.wire.control import read_end_marker
from moldau.broker.wire.messages.fetch import PartitionData
from moldau.broker.wire.records import read_records
from tests.support.brokers.running import wait_until
from tests.support.raw.client import DECODED_LIMIT, RawClient, batches_in

READ_COMMITTED = 1


def fetch_committed(client: RawClient, topic: str, offset: int, **options: int) -> PartitionData:
    return client.fetch(topic, offset, isolation_level=READ_COMMITTED, **options)


def visible(answer: PartitionData, offset: int) -> list[tuple[int, bytes | None]]:
    """Offset and value of what a consumer makes of one answer: batches of an aborted transaction
    are skipped from its first offset on, up to its marker."""
    aborted = sorted(answer.aborted_transactions or [], key=lambda each: each.first_offset)
    skipped: set[int] = set()
    found: list[tuple[int, bytes | None]] = []
    for batch in batches_in(answer):
        header = read_header(batch)
        while aborted and aborted[0].first_offset < header.next_offset:
            skipped.add(aborted.pop(0).producer_id)
        if header.attributes & CONTROL:
            if not read_end_marker(batch).commit:
                skipped.discard(header.producer_id)
        elif not (header.attributes & TRANSACTIONAL and header.producer_id in skipped):
            found += [
                (record.offset, bytes(record.value) if record.value is not None else None)
                for record in read_records(batch, DECODED_LIMIT)
                if record.offset >= offset
            ]
    return found


def read_committed(
    client: RawClient, topic: str, *, partition: int = 0, offset: int = 0, max_bytes: int = 1 << 20
) -> list[bytes | None]:
    """The values from `offset` to the last stable offset."""
    values: list[bytes | None] = []
    while True:
        answer = fetch_committed(client, topic, offset, partition=partition, max_bytes=max_bytes)
        assert answer.error_code == 0, answer
        batches = batches_in(answer)
        if not batches:
            assert offset >= answer.last_stable_offset, f"nothing at {offset}"
            return values
        values += [value for _, value in visible(answer, offset)]
        offset = read_header(batches[-1]).next_offset
        assert offset <= answer.last_stable_offset


def await_stable(client: RawClient, topic: str, stable: int, partition: int = 0) -> None:
    """Markers are written after EndTxn is answered."""
    wait_until(
        lambda: stable_end(client, topic, partition) >= stable, 30, f"{topic} is stable at {stable}"
    )
    assert stable_end(client, topic, partition) == stable


def stable_end(client: RawClient, topic: str, partition: int = 0) -> int:
    answer = fetch_committed(client, topic, 0, partition=partition, max_bytes=0)
    assert answer.error_code == 0, answer
    return int(answer.last_stable_offset)


def markers(client: RawClient, topic: str, partition: int = 0) -> list[tuple[int, bool]]:
    """Offset and kind of every marker of a log."""
    found = []
    offset = 0
    while batches := batches_in(client.fetch(topic, offset, partition=partition)):
        for batch in batches:
            header = read_header(batch)
            if header.attributes & CONTROL:
                found.append((header.base_offset, read_end_marker(batch).commit))
            offset = header.next_offset
    return found
