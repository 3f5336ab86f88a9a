"""An idempotent producer for executors, with sequence numbers that survive a crash.

The sequence of a record is the number of records the same producer sent to the partition before it.
A task that starts again with the same producer id, and sends the same records in the same order,
sends them with the same sequences: the broker appends each once and in order, or refuses it.

While up to MAX_IN_FLIGHT batches are in flight, the next ones are built. The first batch to a
partition goes alone: a broker accepts any sequence from a producer it does not know, so a second
batch must not arrive before the first is in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from moldau.broker.wire.primitives import MalformedMessage
from moldau.broker.wire.records import Record, build_batch
from moldau.ops.client import (
    RETRIABLE,
    Backoff,
    ClientError,
    Cluster,
    Connection,
    TopicPartition,
    error_name,
    refusal,
)
from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.source.fetch import FetchSettings, connect

logger = logging.getLogger("moldau.pipeline")

ALL_REPLICAS = -1
# As many as a broker remembers of each producer, to recognise retries.
MAX_IN_FLIGHT = 5
BATCH_BYTES = 256 << 10
MAX_SEQUENCE = (1 << 31) - 1
_RECORD_OVERHEAD = 32

_REMEDIES = {
    ErrorCode.MESSAGE_TOO_LARGE: "a record is larger than max.message.bytes of the topic; raise it",
    ErrorCode.INVALID_TIMESTAMP: (
        "timestamps are kept, and message.timestamp.before.max.ms or "
        "message.timestamp.after.max.ms of the topic does not allow these; change it"
    ),
    ErrorCode.INVALID_RECORD: (
        "the topic does not accept such records; cleanup.policy=compact needs keys"
    ),
}


class SequenceMismatch(PipelineError):
    """The broker expects another sequence: another process sent with the same producer id."""


class ProducerSettings(NamedTuple):
    """The producer's identity, its topic, and how to send."""

    fetch: FetchSettings
    topic: str
    producer_id: int
    producer_epoch: int
    codec: int = 0
    batch_bytes: int = BATCH_BYTES


class _Batch(NamedTuple):
    topic_partition: TopicPartition
    data: bytes


class Producer:
    """Sends records to the partitions of one topic. Raises PipelineError."""

    def __init__(self, settings: ProducerSettings, sequences: Mapping[int, int]) -> None:
        self._settings = settings
        self._sequences = dict(sequences)
        self._pending: dict[int, list[Record]] = {}
        self._sizes: dict[int, int] = {}
        self._ready: list[_Batch] = []
        self._in_flight: list[tuple[_Batch, Connection | None]] = []
        self._begun: set[int] = set()
        self._cluster: Cluster | None = None
        self.bytes = 0

    def close(self) -> None:
        """Records that were not flushed are not sent."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def add(
        self, partition: int, timestamp_ms: int, key: bytes | None, value: bytes | None,
        headers: bytes,
    ) -> None:  # fmt: skip
        size = len(key or b"") + len(value or b"") + len(headers) + _RECORD_OVERHEAD
        held = self._sizes.get(partition, 0)
        if held and held + size > self._settings.batch_bytes:
            self._build(partition)
            held = 0
        records = self._pending.setdefault(partition, [])
        records.append(Record(len(records), timestamp_ms, key, value, headers))
        self._sizes[partition] = held + size

    def flush(self) -> None:
        """Returns when everything is in the log."""
        for partition in list(self._pending):
            self._build(partition)
        self._send_ready()
        self._receive_replies()

    def _build(self, partition: int) -> None:
        records = self._pending.pop(partition)
        del self._sizes[partition]
        sequence = self._sequences.get(partition, 0)
        last = sequence + len(records) - 1
        if last > MAX_SEQUENCE:
            raise PipelineError(
                f"more than {MAX_SEQUENCE:,} records of one partition go to {partition} of "
                f"{self._settings.topic}; replay them in parts, with --from-offset"
            )
        data = build_batch(
            records,
            base_offset=0,
            last_offset=len(records) - 1,
            codec=self._settings.codec,
            producer_id=self._settings.producer_id,
            producer_epoch=self._settings.producer_epoch,
            base_sequence=sequence,
        )
        self._sequences[partition] = last + 1
        self.bytes += len(data)
        batch = _Batch(TopicPartition(self._settings.topic, partition), bytes(data))
        if partition not in self._begun:
            self._send_ready()
            self._receive_replies()
            self._deliver(batch)
            self._begun.add(partition)
            return
        self._ready.append(batch)
        if len(self._ready) == MAX_IN_FLIGHT:
            self._send_ready()

    # --- sending ---

    def _send_ready(self) -> None:
        """Send the batches that are ready, once those sent before are in the log."""
        self._receive_replies()
        ready, self._ready = self._ready, []
        for batch in ready:
            connection: Connection | None = None
            try:
                connection = self._leader(batch.topic_partition)
                connection.send(self._request(batch))
            except (OSError, MalformedMessage, ClientError) as fault:
                logger.info("sending to %s: %s; retrying", batch.topic_partition, fault)
                # What else was sent on these connections is sent again as well, in order.
                self._in_flight.append((batch, None))
                self.close()
                continue
            self._in_flight.append((batch, connection))

    def _receive_replies(self) -> None:
        in_flight, self._in_flight = self._in_flight, []
        again: list[_Batch] = []
        broken: set[int] = set()
        for batch, connection in in_flight:
            code = int(ErrorCode.LEADER_NOT_AVAILABLE)
            if connection is not None and id(connection) not in broken:
                try:
                    answer = _reply(connection)
                except (OSError, MalformedMessage) as fault:
                    logger.info("sending to %s: %s; retrying", batch.topic_partition, fault)
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
        """Send one batch alone, until it is in the log."""
        backoff = Backoff(self._settings.fetch.patience_s)
        while True:
            try:
                connection = self._leader(batch.topic_partition)
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
            logger.info("sending to %s: %s; retrying", batch.topic_partition, cause)
            if not backoff.wait():
                raise PipelineError(
                    f"partition {batch.topic_partition}: nothing could be written for "
                    f"{self._settings.fetch.patience_s:g} s: {cause}; `moldau status` shows the "
                    "state of the broker. Run it again, it resumes where it stopped"
                )

    def _refused(self, batch: _Batch, answer: PartitionProduceResponse) -> ClientError:
        partition = batch.topic_partition
        if answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return SequenceMismatch(
                f"partition {partition}: {answer.error_message or 'another sequence is expected'}; "
                "is the same replay running elsewhere? Run it again, it resumes where it stopped"
            )
        remedy = _REMEDIES.get(ErrorCode(answer.error_code))
        if remedy is not None:
            return PipelineError(f"partition {partition}: {remedy} ({answer.error_message})")
        return refusal(f"partition {partition}", answer.error_code, answer.error_message)

    def _request(self, batch: _Batch) -> ProduceRequest:
        data = PartitionProduceData(batch.topic_partition.partition, batch.data)
        topic = TopicProduceData(self._settings.topic, partition_data=[data])
        timeout_ms = int(self._settings.fetch.timeout_s * 1000)
        return ProduceRequest(None, ALL_REPLICAS, timeout_ms, [topic])

    def _leader(self, partition: TopicPartition) -> Connection:
        if self._cluster is None:
            self._cluster = connect(self._settings.fetch)
        return self._cluster.connection(self._cluster.leader(partition))


def _reply(connection: Connection) -> PartitionProduceResponse:
    reply: PartitionProduceResponse
    reply = connection.receive().responses[0].partition_responses[0]
    return reply
