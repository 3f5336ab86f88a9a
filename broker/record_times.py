"""The leader's answer to when records were made (broker/metrics/record_times.py).

From the header of the batch that holds the record: its first timestamp, so that nothing has to be
decompressed. Mostly from the tail cache; a few for each question from the store.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from moldau.broker.errors import MoldauError
from moldau.broker.log.callbacks import await_callback
from moldau.broker.log.log import NO_TIMESTAMP, FetchReader, Log
from moldau.broker.log.logs import Logs
from moldau.broker.metrics.record_times import (
    MAX_PLACES,
    Place,
    Times,
    decode_places,
    encode_times,
)
from moldau.broker.report import in_slices
from moldau.broker.topics.topics import Topics
from moldau.broker.wire.batch import (
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    Buffer,
    CorruptBatch,
    read_header,
)

MAX_STORE_READS = 32
READING_S = 0.25  # how long the store is read from


class _Nobody(NamedTuple):
    """Reads like a client that is in no group."""

    client_id: str = ""
    client_host: str = ""
    reads_committed: bool = False


_NOBODY = _Nobody()


class RecordTimes:
    def __init__(self, topics: Topics, logs: Logs) -> None:
        self._topics = topics
        self._logs = logs

    async def answer(self, question: bytes) -> bytes:
        """Raises ValueError."""
        found: Times = []
        reads = 0
        until = time.monotonic() + READING_S
        async for place in in_slices(decode_places(question)[:MAX_PLACES]):
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
        return encode_times(found)

    def _log(self, place: Place) -> Log | None:
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
    """Of the first record of the first batch."""
    if not batches:
        return NO_TIMESTAMP
    try:
        header = read_header(batches[0])
    except CorruptBatch:
        return NO_TIMESTAMP
    # With these the first timestamp of the header means something else.
    if header.attributes & (LOG_APPEND_TIME | DELETE_HORIZON):
        return header.max_timestamp
    return header.base_timestamp
