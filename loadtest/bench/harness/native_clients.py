"""Clients of the benchmark of native topics: as little work per record as possible.

Each does a fixed amount of work, or less if the time runs out: a stream with an entry per record
takes memory, and a run that is limited by time alone would take any amount.
"""

from __future__ import annotations

from moldau.broker.wire.batch import HEADER, BatchHeader
from moldau.broker.wire.frame import LENGTH, response_frame
from moldau.broker.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from moldau.broker.wire.primitives import read_uvarint
from moldau.loadtest.bench.harness.client import RequestFailed
from moldau.loadtest.bench.harness.replay import CountedReplayer, Replayer, XaddReplayer
from moldau.loadtest.bench.harness.requests import VERSIONS, decode, encode, fetch_request
from moldau.ops.client import API_OF, error_name

RESPONSE_BYTES = 1 << 20
HEAD_BYTES = 512  # of a reply: enough to read its batch header
LAST_FIELD = b"\r\n$9\r\ntimestamp\r\n"  # once in every entry, the last of its field names


class PipelinedXadd(CountedReplayer, XaddReplayer):
    """A fixed number of pipelines of XADD commands to a store."""

    def __init__(self, pipeline: bytes, commands: int, in_flight: int, pipelines: int) -> None:
        super().__init__(pipeline, in_flight, pipelines)
        self._commands = commands  # of a pipeline
        self._answered = 0  # commands of the pipeline that is being answered

    def _count(self, data: bytes) -> int:
        self._answered += super()._count(data)
        pipelines, self._answered = divmod(self._answered, self._commands)
        return pipelines


class GroupFetcher(Replayer):
    """Fetches a partition to its end as a group member, one request at a time."""

    def __init__(self, client_id: str, topic: str, partition: int, records: int) -> None:
        super().__init__([], 1)
        self._client_id = client_id
        self._topic, self._partition = topic, partition
        self._offset = 0
        self._left_records = records
        self._records_at = records_at(topic)
        self._head = b""
        self._missing = 0  # bytes of a reply whose head was read
        self.records = 0
        self.max_records = 0  # of a reply

    def _send(self, count: int) -> None:
        if self.records == self._left_records:
            self.done.set_result(None)
            return
        request = fetch_request(self._topic, self._partition, self._offset, RESPONSE_BYTES)
        self._frames = [encode(request, self._client_id)]
        self._turn = 0
        super()._send(1)

    def _count(self, data: bytes) -> int:
        if not self._missing:
            data = self._head + data
            self._head = data
            whole = LENGTH.size + LENGTH.unpack_from(data)[0] if len(data) >= LENGTH.size else 0
            if len(data) < min(whole or HEAD_BYTES, HEAD_BYTES):
                return 0
            self._read_head(data)
            self._head = b""
            self._missing = whole
        self._missing -= len(data)
        return 0 if self._missing else 1

    def _read_head(self, reply: bytes) -> None:
        """A reply has one batch, whose header counts the records."""
        size, at = read_uvarint(reply, self._records_at)
        if size <= 1:
            response: FetchResponse = decode(FetchRequest, reply[LENGTH.size :])
            code = response.responses[0].partitions[0].error_code
            raise RequestFailed(f"fetch at {self._offset}: {error_name(code)}, no records")
        header = BatchHeader._make(HEADER.unpack_from(reply, at))
        if header.size != size - 1:
            raise RequestFailed(f"fetch at {self._offset}: more than one batch")
        self._offset = header.next_offset
        self.records += header.record_count
        self.max_records = max(self.max_records, header.record_count)


def records_at(topic: str) -> int:
    """Where the records begin, with their size, in a reply about one partition of the topic."""
    mark = b"the records"
    answer = PartitionData(0, aborted_transactions=None, records=mark)
    response = FetchResponse(responses=[FetchableTopicResponse(topic, partitions=[answer])])
    reply = b"".join(response_frame(API_OF[FetchRequest], VERSIONS[FetchRequest], 1, response))
    return reply.index(mark) - 1


class GroupReader(Replayer):
    """XREADGROUP of a stream to its end, one command at a time."""

    def __init__(self, command: bytes, count: int, records: int) -> None:
        super().__init__([command], 1)
        self._max_count = count
        self._unread = records
        self._due = min(count, records)
        self._tail = b""
        self.records = 0

    def _send(self, count: int) -> None:
        if self._unread:
            self._due = min(self._max_count, self._unread)
            self._tail = b""
            super()._send(1)
        else:
            self.done.set_result(None)

    def _count(self, data: bytes) -> int:
        if data[:1] == b"-" and not self._tail:
            raise ConnectionError(f"the store refused: {data[:200]!r}")
        window = self._tail + data
        found = window.count(LAST_FIELD)
        # One byte shorter than the name: none is counted twice.
        self._tail = window[-(len(LAST_FIELD) - 1) :]
        self._due -= found
        self._unread -= found
        self.records += found
        return 1 if found and not self._due else 0
