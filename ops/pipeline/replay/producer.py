"""An idempotent producer for executors, whose sequence numbers are a matter of the caller.

The sequence of a record is how many of the same producer went to the partition before it. So who
comes back after a crash with the same producer id, and sends the same records in the same order,
sends them under the same sequences: the broker appends each once, in order, or says why not.

Two requests' worth of batches are on their way at most: while the broker works on some, the next
are built. The first batch to a partition goes alone: of a producer it does not know a broker takes
any sequence, so a second batch must not be there before the first is known to be in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from broker.errors import ErrorCode
from broker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from broker.wire.primitives import MalformedMessage
from broker.wire.records import Record, build_batch
from ops.client import (
    RETRIABLE,
    Backoff,
    ClientError,
    Cluster,
    Connection,
    TopicPartition,
    error_name,
    refusal,
)
from ops.pipeline.errors import PipelineError
from ops.pipeline.source.fetch import FetchSettings, connect

log = logging.getLogger("moldau.pipeline")

ALL_REPLICAS = -1
# As many as a broker remembers of each producer, to recognise those that are sent again.
MOST_IN_FLIGHT = 5
BATCH_BYTES = 256 << 10
LARGEST_SEQUENCE = (1 << 31) - 1
_RECORD_OVERHEAD = 32

_REMEDIES = {
    ErrorCode.MESSAGE_TOO_LARGE: "a record is larger than max.message.bytes of the topic; raise it",
    ErrorCode.INVALID_TIMESTAMP: (
        "timestamps are kept, and these are outside of what message.timestamp.before.max.ms and "
        "message.timestamp.after.max.ms of the topic allow; change those"
    ),
    ErrorCode.INVALID_RECORD: (
        "the topic does not take such records; one with cleanup.policy=compact needs keys"
    ),
}


class OutOfStep(PipelineError):
    """The broker expects another sequence: somebody else sent with the same producer id."""


class Producing(NamedTuple):
    """Who sends where, and how."""

    settings: FetchSettings
    topic: str
    producer_id: int
    producer_epoch: int
    codec: int = 0
    batch_bytes: int = BATCH_BYTES


class _Batch(NamedTuple):
    partition: int
    data: bytes


class Sender:
    """Sends records to the partitions of one topic. Raises PipelineError."""

    def __init__(self, producing: Producing, sequences: Mapping[int, int]) -> None:
        self._producing = producing
        self._sequences = dict(sequences)
        self._pending: dict[int, list[Record]] = {}
        self._sizes: dict[int, int] = {}
        self._ready: list[_Batch] = []
        self._under_way: list[tuple[_Batch, Connection | None]] = []
        self._begun: set[int] = set()
        self._cluster: Cluster | None = None
        self.bytes = 0

    def close(self) -> None:
        """What was not flushed is not sent."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def add(
        self, partition: int, timestamp_ms: int, key: bytes | None, value: bytes | None,
        headers: bytes,
    ) -> None:  # fmt: skip
        size = len(key or b"") + len(value or b"") + len(headers) + _RECORD_OVERHEAD
        held = self._sizes.get(partition, 0)
        if held and held + size > self._producing.batch_bytes:
            self._build(partition)
            held = 0
        records = self._pending.setdefault(partition, [])
        records.append(Record(len(records), timestamp_ms, key, value, headers))
        self._sizes[partition] = held + size

    def flush(self) -> None:
        """Returns when everything is in the log."""
        for partition in list(self._pending):
            self._build(partition)
        self._launch()
        self._collect()

    def _build(self, partition: int) -> None:
        records = self._pending.pop(partition)
        del self._sizes[partition]
        sequence = self._sequences.get(partition, 0)
        last = sequence + len(records) - 1
        if last > LARGEST_SEQUENCE:
            raise PipelineError(
                f"more than {LARGEST_SEQUENCE:,} records of one partition go to {partition} of "
                f"{self._producing.topic}; replay them in parts, with --from-offset"
            )
        data = build_batch(
            records,
            base_offset=0,
            last_offset=len(records) - 1,
            codec=self._producing.codec,
            producer_id=self._producing.producer_id,
            producer_epoch=self._producing.producer_epoch,
            base_sequence=sequence,
        )
        self._sequences[partition] = last + 1
        self.bytes += len(data)
        batch = _Batch(partition, bytes(data))
        if partition not in self._begun:
            self._launch()
            self._collect()
            self._deliver(batch)
            self._begun.add(partition)
            return
        self._ready.append(batch)
        if len(self._ready) == MOST_IN_FLIGHT:
            self._launch()

    # --- on the wire ---

    def _launch(self) -> None:
        """Send what is ready, once what was sent before is in the log."""
        self._collect()
        ready, self._ready = self._ready, []
        for batch in ready:
            connection: Connection | None = None
            try:
                connection = self._leader(batch.partition)
                connection.send(self._request(batch))
            except (OSError, MalformedMessage, ClientError) as fault:
                log.info("sending to %s: %s; trying again", self._place(batch), fault)
                # Whatever else went this way has to go again as well, and in order.
                self._under_way.append((batch, None))
                self.close()
                continue
            self._under_way.append((batch, connection))

    def _collect(self) -> None:
        under_way, self._under_way = self._under_way, []
        again: list[_Batch] = []
        broken: set[int] = set()
        for batch, connection in under_way:
            code = int(ErrorCode.LEADER_NOT_AVAILABLE)
            if connection is not None and id(connection) not in broken:
                try:
                    answer = _reply(connection)
                except (OSError, MalformedMessage) as fault:
                    log.info("sending to %s: %s; trying again", self._place(batch), fault)
                    broken.add(id(connection))
                else:
                    code = answer.error_code
            if code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                again.append(batch)
        if again:
            self.close()
            for batch in again:
                self._deliver(batch)

    def _deliver(self, batch: _Batch) -> None:
        """One batch by itself, as often as it takes."""
        backoff = Backoff(self._producing.settings.patience_s)
        while True:
            try:
                connection = self._leader(batch.partition)
                connection.send(self._request(batch))
                answer = _reply(connection)
            except (OSError, MalformedMessage, ClientError) as fault:
                cause = str(fault)
            else:
                if answer.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    return
                if answer.error_code not in RETRIABLE:
                    raise self._refused(batch, answer)
                cause = error_name(answer.error_code)
            self.close()
            log.info("sending to %s: %s; trying again", self._place(batch), cause)
            if not backoff.wait():
                raise PipelineError(
                    f"partition {self._place(batch)}: nothing could be written for "
                    f"{self._producing.settings.patience_s:g} s: {cause}; `moldau status` shows "
                    "whether the broker is well. Run it again, it goes on where it was"
                )

    def _refused(self, batch: _Batch, answer: PartitionProduceResponse) -> ClientError:
        place = self._place(batch)
        if answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return OutOfStep(
                f"partition {place}: {answer.error_message or 'another sequence is expected'}; is "
                "the same replay running elsewhere? Run it again, it finds out where it was"
            )
        remedy = _REMEDIES.get(ErrorCode(answer.error_code))
        if remedy is not None:
            return PipelineError(f"partition {place}: {remedy} ({answer.error_message})")
        return refusal(f"partition {place}", answer.error_code, answer.error_message)

    def _place(self, batch: _Batch) -> TopicPartition:
        return TopicPartition(self._producing.topic, batch.partition)

    def _request(self, batch: _Batch) -> ProduceRequest:
        data = PartitionProduceData(batch.partition, batch.data)
        topic = TopicProduceData(self._producing.topic, partition_data=[data])
        timeout_ms = int(self._producing.settings.timeout_s * 1000)
        return ProduceRequest(None, ALL_REPLICAS, timeout_ms, [topic])

    def _leader(self, partition: int) -> Connection:
        if self._cluster is None:
            self._cluster = connect(self._producing.settings)
        place = TopicPartition(self._producing.topic, partition)
        return self._cluster.connection(self._cluster.leader(place))


def _reply(connection: Connection) -> PartitionProduceResponse:
    reply: PartitionProduceResponse
    reply = connection.receive().responses[0].partition_responses[0]
    return reply
