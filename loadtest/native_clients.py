"""Clients of the benchmark of native topics: as little work per record as possible.

Each does a fixed amount and is done then, or when its time is over: streams with an entry for each
record take memory, and a run by time alone would take any amount.
"""

from __future__ import annotations

from typing import cast

from broker.wire.batch import headers
from broker.wire.frame import LENGTH, read_response, request_frame
from broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from loadtest.client import FETCH, RequestFailed
from loadtest.replay import LineReplayer, Replayer

FETCH_VERSION = 12
RESPONSE_BYTES = 1 << 20
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
        self._chunks: list[bytes] = []
        self._missing = 0  # of the reply, as far as that is known
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
        self._chunks.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            return 0
        reply = b"".join(self._chunks)
        if len(reply) < LENGTH.size:
            return 0
        (size,) = LENGTH.unpack_from(reply)
        self._missing = LENGTH.size + size - len(reply)
        if self._missing > 0:
            self._chunks = [reply]
            return 0
        self._chunks = []
        self._missing = 0
        _, response = read_response(FETCH, FETCH_VERSION, reply[LENGTH.size :])
        answer = cast("FetchResponse", response).responses[0].partitions[0]
        if answer.error_code:
            raise RequestFailed(f"fetch at {self._offset}: error {answer.error_code}")
        got = 0
        for header in headers(cast("bytes", answer.records)):
            got += header.record_count
            self._offset = header.next_offset
        self.records += got
        self.most = max(self.most, got)
        return 1


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
