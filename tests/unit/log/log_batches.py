"""Batches that tests append to a log, and what is in the log then, straight from the store."""

from typing import Any

from moldau.broker.log.state.log_state import LogState
from moldau.broker.wire.batch import headers
from moldau.broker.wire.records import read_records
from tests.support.drivers.log_host import Host, stored
from tests.support.raw.client import make_batch


def plain(*values: bytes) -> bytearray:
    return make_batch([(None, value, 1_000) for value in values])


def sequenced(producer: int, sequence: int, records: int = 1, epoch: int = 0) -> bytearray:
    values = [b"%d-%d" % (producer, sequence + number) for number in range(records)]
    return make_batch(
        [(None, value, 1_000) for value in values],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


async def values(host: Host, log: Any) -> list[bytes | None]:
    """What consumers would see, and that offsets are dense."""
    found = []
    expected = 0
    for entry in await stored(host, log):
        assert entry.base == expected
        at = 0
        for header in headers(entry.blob):
            assert header.base_offset == expected
            expected = header.next_offset
            batch = entry.blob[at : at + header.size]
            found += [record.value for record in read_records(batch, 1 << 20)]
            at += header.size
    assert len(found) == expected
    return found


async def fold(host: Host, log: Any) -> LogState:
    state = LogState()
    for entry in await stored(host, log):
        state.apply(entry.blob)
    return state
