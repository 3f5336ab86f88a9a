"""Clients of the benchmark of native topics: as little work per record as possible.

Each does a fixed amount and is done then, or when its time is over: streams with an entry for each
record take memory, and a run by time alone would take any amount.
"""

from __future__ import annotations

from typing import cast

from broker.wire.batch import HEADER, BatchHeader
from broker.wire.frame import LENGTH, read_response, request_frame, response_frame
from broker.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from broker.wire.primitives import read_uvarint
from loadtest.bench.harness.client import FETCH, RequestFailed
from loadtest.bench.harness.replay import LineReplayer, Replayer

FETCH_VERSION = 12
RESPONSE_BYTES = 1 << 20
ENOUGH = 512  # bytes of a reply, to know what it holds
LAST_NAME = b"\r\n$9\r\ntimestamp\r\n"  # once in every entry, and the last of its names


class Limited(Replayer):
    """So many requests and no more."""

    def __init__(self, frame: bytes, in_flight: int, requests: int) -> None:
        super().__init__([frame], min(in_flight, requests))
        self._unsent = requests

    def _send(self, count: int) -> None:
        count = min(count, self._unsent)
        self._unsent -= count
        if count:
            super()._send(count)
        elif not self._sent_at and not self.done.done():
            self.done.set_result(None)


class LimitedLines(Limited, LineReplayer):
    """The same to a store: a request is several commands, each answered in two lines."""

    commands = 1

    def _count(self, data: bytes) -> int:
        answers = super()._count(data)
        self._answered = getattr(self, "_answered", 0) + answers
        whole, self._answered = divmod(self._answered, self.commands)
        return whole


class GroupFetcher(Replayer):
    """Fetches a partition to its end as a member of a group, one request after the other."""

    def __init__(self, client_id: str, topic: str, partition: int, records: int) -> None:
        super().__init__([], 1)
        self._client_id = client_id
        self._place = topic, partition
        self._offset = 0
        self._left_records = records
        self._records_at = records_at(topic)
        self._head = b""
        self._missing = 0  # of a reply whose beginning is known
        self.records = 0
        self.most = 0  # records of a reply

    def _send(self, count: int) -> None:
        if self.records == self._left_records:
            self.done.set_result(None)
            return
        topic, number = self._place
        wanted = FetchPartition(
            number, fetch_offset=self._offset, partition_max_bytes=RESPONSE_BYTES
        )
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=RESPONSE_BYTES,
            topics=[FetchTopic(topic, partitions=[wanted])],
        )
        self._frames = [request_frame(FETCH, FETCH_VERSION, 1, self._client_id, request)]
        self._turn = 0
        super()._send(1)

    def _count(self, data: bytes) -> int:
        if not self._missing:
            data = self._head + data
            self._head = data
            whole = LENGTH.size + LENGTH.unpack_from(data)[0] if len(data) >= LENGTH.size else 0
            if len(data) < min(whole or ENOUGH, ENOUGH):
                return 0
            self._take(data)
            self._head = b""
            self._missing = whole
        self._missing -= len(data)
        return 0 if self._missing else 1

    def _take(self, reply: bytes) -> None:
        """What the beginning of a reply says: its only batch holds all its records."""
        size, at = read_uvarint(reply, self._records_at)
        if size <= 1:
            _, response = read_response(FETCH, FETCH_VERSION, reply[LENGTH.size :])
            code = cast("FetchResponse", response).responses[0].partitions[0].error_code
            raise RequestFailed(f"fetch at {self._offset}: error {code}, no records")
        header = BatchHeader._make(HEADER.unpack_from(reply, at))
        if header.size != size - 1:
            raise RequestFailed(f"fetch at {self._offset}: more than one batch")
        self._offset = header.next_offset
        self.records += header.record_count
        self.most = max(self.most, header.record_count)


def records_at(topic: str) -> int:
    """Where the records begin, with their size, in a reply about one partition of the topic."""
    mark = b"the records"
    answer = PartitionData(0, aborted_transactions=None, records=mark)
    response = FetchResponse(responses=[FetchableTopicResponse(topic, partitions=[answer])])
    reply = b"".join(response_frame(FETCH, FETCH_VERSION, 1, response))
    return reply.index(mark) - 1


class GroupReader(Replayer):
    """XREADGROUP of a stream to its end, one command after the other."""

    def __init__(self, command: bytes, count: int, records: int) -> None:
        super().__init__([command], 1)
        self._count_wanted = count
        self._unread = records
        self._due = min(count, records)
        self._tail = b""
        self.records = 0

    def _send(self, count: int) -> None:
        if self._unread:
            self._due = min(self._count_wanted, self._unread)
            self._tail = b""
            super()._send(1)
        else:
            self.done.set_result(None)

    def _count(self, data: bytes) -> int:
        if data[:1] == b"-" and not self._tail:
            raise ConnectionError(f"the store refused: {data[:200]!r}")
        window = self._tail + data
        found = window.count(LAST_NAME)
        # What is kept is too short to hold a whole name: none is counted twice.
        self._tail = window[-(len(LAST_NAME) - 1) :]
        self._due -= found
        self._unread -= found
        self.records += found
        return 1 if found and not self._due else 0
