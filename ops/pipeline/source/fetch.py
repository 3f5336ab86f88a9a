"""Reads offset ranges of partitions, for executors: whole batches, one request ahead.

While the batches of one reply are decoded, the broker already works on the next request. Moving
leaders, restarting workers and broken connections are retried until there was no progress for
`patience_s`.

With isolation level read_committed each batch comes with whether its transaction was aborted.
Markers are batches without records of their own: a range may begin or end with one, or hold nothing
else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from moldau.broker.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.broker.wire.primitives import MalformedMessage
from moldau.ops.client import (
    PLAINTEXT,
    RETRIABLE,
    Backoff,
    ClientError,
    Cluster,
    Connection,
    Security,
    TopicPartition,
    error_name,
    refusal,
)
from moldau.ops.client.batches import READ_COMMITTED, READ_UNCOMMITTED, batches_of
from moldau.ops.pipeline.errors import PipelineError, beyond_the_end, offsets_trimmed
from moldau.ops.pipeline.source.decode import FetchedBatch

logger = logging.getLogger("moldau.pipeline")


class FetchSettings(NamedTuple):
    """How to reach the brokers and how to fetch: the `kafka.*` options."""

    bootstrap: tuple[tuple[str, int], ...]
    isolation: int = READ_UNCOMMITTED
    max_bytes: int = 4 << 20
    max_wait_ms: int = 500
    min_bytes: int = 1
    timeout_s: float = 30.0
    patience_s: float = 120.0  # how long to retry without progress
    check_crcs: bool = True
    client_id: str = "moldau-pipeline"
    fail_on_data_loss: bool = True
    security: Security = PLAINTEXT


class OffsetRange(NamedTuple):
    """Offsets of a partition, from `start` up to but not including `end`."""

    topic_partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return max(self.end - self.start, 0)


def connect(settings: FetchSettings) -> Cluster:
    """The cluster behind the first bootstrap server that answers. Raises PipelineError."""
    cluster = Cluster(
        settings.bootstrap,
        security=settings.security,
        timeout=settings.timeout_s,
        client_id=settings.client_id,
    )
    try:
        cluster.metadata()
    except ClientError as fault:
        cluster.close()
        names = ", ".join(f"{host}:{port}" for host, port in settings.bootstrap)
        raise PipelineError(
            f"no broker answers at kafka.bootstrap.servers={names}: {fault}. "
            "On a cluster every Spark worker has to reach the broker at this address"
        ) from None
    return cluster


class RangeReader:
    """Reads one range after another; connections to brokers are kept between them."""

    def __init__(self, settings: FetchSettings) -> None:
        self._settings = settings
        self._cluster: Cluster | None = None

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def read(self, wanted: OffsetRange) -> Iterator[list[FetchedBatch]]:
        """The batches of a range, a list for each reply that has any.

        The first and the last batch may hold records outside of the range.
        """
        finished = False
        try:
            yield from self._read(wanted)
            finished = True
        finally:
            if not finished:  # a request may be in flight: its reply would be taken for another's
                self.close()

    def _read(self, wanted: OffsetRange) -> Iterator[list[FetchedBatch]]:
        partition, position, end = wanted
        since = position
        was_empty = False
        backoff = Backoff(self._settings.patience_s)
        connection: Connection | None = None
        while position < end:
            try:
                if connection is None:
                    connection = self._leader(partition)
                    connection.send(self._request(partition, position))
                answer = self._receive(connection)
            except (OSError, MalformedMessage, ClientError) as fault:
                self.close()
                connection = None
                self._wait(partition, str(fault), backoff)
                continue
            if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                position = since = self._out_of_range(wanted, position, answer)
                connection = self._send_next(connection, wanted, position)
                continue
            if answer.error_code:
                if answer.error_code not in RETRIABLE:
                    raise refusal(f"partition {partition}", answer.error_code)
                self.close()
                connection = None
                self._wait(partition, error_name(answer.error_code), backoff)
                continue
            found = list(batches_of(answer, self._settings.isolation))
            if found:
                position = found[-1][0].next_offset
                was_empty = False
                backoff.progress()
            elif answer.high_watermark < end:
                error = beyond_the_end(partition, end, answer.high_watermark)
                if self._settings.fail_on_data_loss:
                    raise error
                logger.warning("%s", error)
                return
            elif self._is_lost(connection, partition, position):
                return
            elif self._is_stable(answer, position, end):
                # What is left of the range was compacted, and an open transaction follows it, whose
                # batches would show that.
                if was_empty:
                    return
                was_empty = True
            elif backoff.is_exhausted:
                raise self._nothing_read(partition, self._why_empty(answer))
            connection = self._send_next(connection, wanted, position)
            batches = [
                FetchedBatch(header, data, since, end, aborted)
                for header, data, aborted in found
                if header.base_offset < end and header.next_offset > since
            ]
            if batches:
                yield batches

    def _request(self, partition: TopicPartition, position: int) -> FetchRequest:
        settings = self._settings
        wanted = FetchPartition(
            partition.partition, fetch_offset=position, partition_max_bytes=settings.max_bytes
        )
        return FetchRequest(
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.max_bytes,
            isolation_level=settings.isolation,
            topics=[FetchTopic(partition.topic, partitions=[wanted])],
        )

    def _send_next(
        self, connection: Connection, wanted: OffsetRange, position: int
    ) -> Connection | None:
        """The request after a reply, unless that was the last; None if the connection is broken."""
        if position < wanted.end:
            try:
                connection.send(self._request(wanted.topic_partition, position))
            except OSError as fault:
                logger.info("partition %s: %s; retrying", wanted.topic_partition, fault)
                self.close()
                return None
        return connection

    def _leader(self, partition: TopicPartition) -> Connection:
        if self._cluster is None:
            self._cluster = connect(self._settings)
        return self._cluster.connection(self._cluster.leader(partition))

    def _receive(self, connection: Connection) -> PartitionData:
        answer = connection.receive()
        if answer.error_code:
            raise refusal("Fetch", answer.error_code)
        data: PartitionData = answer.responses[0].partitions[0]
        return data

    def _is_lost(self, connection: Connection, partition: TopicPartition, position: int) -> bool:
        """Did the store lose the records from here to the end, and the log go on above them?

        Then the log's first leader epoch has ended before this offset. Otherwise the broker should
        have replied with records.
        """
        wanted = OffsetForLeaderTopic(
            partition.topic, [OffsetForLeaderPartition(partition.partition, leader_epoch=0)]
        )
        try:
            answer = connection.call(OffsetForLeaderEpochRequest(topics=[wanted]))
        except (OSError, MalformedMessage) as fault:
            logger.info("partition %s: %s; retrying", partition, fault)
            self.close()  # so the next request fails too, and is sent again
            return False
        ended: EpochEndOffset = answer.topics[0].partitions[0]
        return ended.error_code == 0 and 0 <= ended.end_offset <= position

    def _is_stable(self, answer: PartitionData, position: int, end: int) -> bool:
        """Could everything from `position` to `end` have been sent to a read_committed consumer?"""
        return (
            self._settings.isolation == READ_COMMITTED
            and answer.log_start_offset <= position
            and answer.last_stable_offset >= end
        )

    def _why_empty(self, answer: PartitionData) -> str:
        stable = answer.last_stable_offset
        if self._settings.isolation == READ_COMMITTED and stable < answer.high_watermark:
            return (
                f"a transaction is open since offset {stable}, and read_committed waits for its "
                "end (`moldau transactions list` shows it)"
            )
        return "the broker replies, but without records"

    def _wait(self, partition: TopicPartition, cause: str, backoff: Backoff) -> None:
        logger.info("partition %s: %s; retrying", partition, cause)
        if not backoff.wait():
            raise self._nothing_read(partition, cause)

    def _nothing_read(self, partition: TopicPartition, cause: str) -> PipelineError:
        return PipelineError(
            f"partition {partition}: nothing could be read for {self._settings.patience_s:g} s: "
            f"{cause}; `moldau status` shows the state of the broker, kafkaConsumer.pollTimeoutMs "
            "sets how long to retry"
        )

    def _out_of_range(self, wanted: OffsetRange, position: int, answer: PartitionData) -> int:
        """The offset to continue at, if data loss is allowed."""
        partition, _, end = wanted
        if position < answer.log_start_offset:
            error = offsets_trimmed(partition, position, min(answer.log_start_offset, end))
            following = min(answer.log_start_offset, end)
        else:
            error = beyond_the_end(partition, position, answer.high_watermark)
            following = end
        if self._settings.fail_on_data_loss:
            raise error
        logger.warning("%s", error)
        return following
