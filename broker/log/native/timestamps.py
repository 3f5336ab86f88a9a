"""Offsets by timestamp in a native stream: entries carry their time in their ids."""

from __future__ import annotations

from moldau.broker.log.log import OffsetAndTimestamp
from moldau.broker.log.native.stream_reader import RawEntry, StreamReader, numbered
from moldau.broker.store.native import NativeStreams, RawEntries
from moldau.broker.store.stream_ids import parse

PAGE = 500
NEWEST_LOOKED_AT = 1_000


async def offset_for_timestamp(
    native: NativeStreams, reader: StreamReader, timestamp: int
) -> OffsetAndTimestamp | None:
    """The first record whose timestamp is at least `timestamp`.

    A record is older than its entry, so entries older than that are skipped.
    """
    view = reader.view
    run = view.numbering.start_at(timestamp << view.numbering.bits)
    at = run.first
    while True:
        entries = _parsed(await native.entries(view.key, bytes(at), PAGE))
        for record in numbered(entries, run, reader.value_field):
            if record.timestamp >= timestamp:
                await view.note(run)
                return OffsetAndTimestamp(record.offset, record.timestamp)
        if len(entries) < PAGE:
            return None
        at = entries[-1][0].after


async def offset_of_largest_timestamp(
    native: NativeStreams, reader: StreamReader
) -> OffsetAndTimestamp | None:
    """The first record with the largest timestamp, among the newest entries."""
    view = reader.view
    entries = _parsed(await native.newest(view.key, NEWEST_LOOKED_AT))[::-1]
    if not entries:
        return None
    run = view.numbering.start_at(view.numbering.offset_from(entries[0][0]))
    best: OffsetAndTimestamp | None = None
    for record in numbered(entries, run, reader.value_field):
        if best is None or record.timestamp > best.timestamp:
            best = OffsetAndTimestamp(record.offset, record.timestamp)
    await view.note(run)
    return best


def _parsed(entries: RawEntries) -> list[RawEntry]:
    return [(parse(raw), fields) for raw, fields in entries]
