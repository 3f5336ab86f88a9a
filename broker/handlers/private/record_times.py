"""RECORD_TIMES: the leader looks up when records were produced.

The time is the first timestamp in the header of the record's batch, so nothing is decompressed.
Most batches are in the tail cache; a few for each request are read from the store.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from moldau.broker.errors import MoldauError
from moldau.broker.handlers.private.metrics import in_slices
from moldau.broker.log.callbacks import await_callback
from moldau.broker.log.log import NO_TIMESTAMP, FetchReader, Log
from moldau.broker.log.logs import Logs
from moldau.broker.private.table import MAX_RECORD_TIMES, RecordOffset, Times
from moldau.broker.topics.topics import Topics
from moldau.broker.wire.batch import (
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    Buffer,
    CorruptBatch,
    read_header,
)

MAX_STORE_READS = 32
READING_S = 0.25  # for reading from the store


class _Nobody(NamedTuple):
    """Reads logs like a client without a group."""

    client_id: str = ""
    client_host: str = ""
    reads_committed: bool = False


_NOBODY = _Nobody()


class RecordTimes:
    def __init__(self, topics: Topics, logs: Logs) -> None:
        self._topics = topics
        self._logs = logs

    async def answer(self, wanted: list[RecordOffset]) -> Times:
        found: Times = []
        reads = 0
        until = time.monotonic() + READING_S
        async for place in in_slices(wanted[:MAX_RECORD_TIMES]):
            log = self._log(place)
            if log is None:
                found.append(NO_TIMESTAMP)
                continue
            offset = max(place[2], log.start)
            reader = log.reader_for(_NOBODY)
            batches = reader.read_tail(offset, 1, at_least_one=True)
            if batches is not None:
                found.append(_time_of(batches))
            elif reads < MAX_STORE_READS and time.monotonic() < until:
                reads += 1
                found.append(await _from_store(reader, offset))
            else:
                found.append(None)
        return found

    def _log(self, place: RecordOffset) -> Log | None:
        name, partition, offset = place
        topic = self._topics.get(name)
        if topic is None or not 0 <= partition < topic.partitions:
            return None
        log = self._logs.log_for(topic, partition)
        if not log.is_loaded or log.is_gone or offset >= log.end:
            return None
        return log


async def _from_store(reader: FetchReader, offset: int) -> int | None:
    try:
        batches: list[Buffer] = await await_callback(
            lambda done: reader.read_store(offset, 1, at_least_one=True, done=done)
        )
    except MoldauError:
        return None
    return _time_of(batches)


def _time_of(batches: list[Buffer]) -> int:
    """The timestamp of the first record."""
    if not batches:
        return NO_TIMESTAMP
    try:
        header = read_header(batches[0])
    except CorruptBatch:
        return NO_TIMESTAMP
    # These attributes give the first timestamp another meaning.
    if header.attributes & (LOG_APPEND_TIME | DELETE_HORIZON):
        return header.max_timestamp
    return header.base_timestamp
