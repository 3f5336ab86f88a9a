"""What is done to a native partition beside appending and reading: retention, DeleteRecords, and
finding offsets by time. Entries carry their time in their ids, so ids do for all of it."""

from __future__ import annotations

import time

from broker.errors import ErrorCode, KafkaError
from broker.log.native.batching import RawEntry, numbered
from broker.log.native.ids import Id, parse
from broker.log.native.log import NativeLog
from broker.log.timestamps import OffsetAndTimestamp
from broker.settings.kafka import TopicConfig
from broker.store.native import NativeStreams, RawEntries

NO_LIMIT = -1
PAGE = 500
NEWEST_LOOKED_AT = 1_000


async def enforce(
    native: NativeStreams, found: NativeLog, config: TopicConfig, kept_producers_ms: int
) -> None:
    """retention.ms and retention.bytes, and producers that have written nothing for long."""
    now_ms = time.time_ns() // 1_000_000
    removed = 0
    if config.retention_ms != NO_LIMIT:
        oldest = Id(max(now_ms - config.retention_ms, 0), 0)
        last = await native.last_before(found.key, bytes(oldest))
        if last is not None:
            removed += await native.trim_before(found.key, bytes(oldest))
            await raise_start(native, found, found.numbering.offset_behind(parse(last)))
    if config.retention_bytes != NO_LIMIT:
        size = await native.memory(found.key)
        if size > config.retention_bytes:
            length = await native.length(found.key)
            removed += await native.trim_to(found.key, length * config.retention_bytes // size)
    saved = await native.producers(found.base)
    silent = [name for name, value in saved.items() if now_ms - used_ms(value) > kept_producers_ms]
    if silent:
        await native.forget_producers(found.base, silent)
    if removed:
        await found.current()


async def raise_start(native: NativeStreams, found: NativeLog, offset: int) -> None:
    """What Redis applications remove is not known of: of that, offsets stay good."""
    await found.current()
    if offset > found.start:
        await native.set_start(found.base, offset)


def used_ms(saved: bytes) -> int:
    """When a producer wrote last: `epoch used;...`."""
    return int(saved.split(b";")[0].split(b" ")[1])


async def delete_records(native: NativeStreams, found: NativeLog, offset: int) -> int:
    """Remove what is before `offset` (-1: everything); gives the new log start."""
    if offset == -1:
        offset = found.end
    if not 0 <= offset <= found.end:
        text = f"offset {offset} is not in 0..{found.end}"
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, text)
    await native.trim_before(found.key, bytes(found.numbering.start_at(offset).first))
    await raise_start(native, found, offset)
    await found.current()
    return found.start


async def offset_for_timestamp(
    native: NativeStreams, found: NativeLog, timestamp: int
) -> OffsetAndTimestamp | None:
    """The first record whose timestamp is at least `timestamp`.

    A record is older than its entry, so nothing is looked for in entries older than that.
    """
    run = found.numbering.start_at(timestamp << found.numbering.bits)
    at = run.first
    while True:
        entries = _parsed(await native.entries(found.key, bytes(at), PAGE))
        for record in numbered(entries, run, found.value_field):
            if record.timestamp >= timestamp:
                await found.note(run)
                return OffsetAndTimestamp(record.offset, record.timestamp)
        if len(entries) < PAGE:
            return None
        at = entries[-1][0].after


async def offset_of_largest_timestamp(
    native: NativeStreams, found: NativeLog
) -> OffsetAndTimestamp | None:
    """The first record with the largest timestamp, among the newest entries."""
    entries = _parsed(await native.newest(found.key, NEWEST_LOOKED_AT))[::-1]
    if not entries:
        return None
    run = found.numbering.start_at(found.numbering.offset_from(entries[0][0]))
    best: OffsetAndTimestamp | None = None
    for record in numbered(entries, run, found.value_field):
        if best is None or record.timestamp > best.timestamp:
            best = OffsetAndTimestamp(record.offset, record.timestamp)
    await found.note(run)
    return best


def _parsed(entries: RawEntries) -> list[RawEntry]:
    return [(parse(raw), fields) for raw, fields in entries]
