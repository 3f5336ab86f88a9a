"""The product's blocking connection, with every version of every request a test may want.

For what real clients hide: exact error codes, log start offsets, batches as they are stored, one
worker rather than another. The codecs themselves are checked against other people's elsewhere.

    with RawClient(port) as client:
        response = client.call(ListOffsetsRequest(...), version=7)
"""

import contextlib
from collections.abc import Iterable

from moldau.broker.wire.batch import split_batches
from moldau.broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from moldau.broker.wire.messages.produce import (
    NOT_MIRRORED,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from moldau.broker.wire.records import Record, build_batch, read_records
from moldau.broker.wire.schema import Message
from moldau.ops.client.connection import API_OF, Connection

# The last versions that name topics rather than ids.
NAMED_PRODUCE, NAMED_FETCH = 12, 12
DECODED_LIMIT = 1 << 28


class RawClient(Connection):
    """One connection, on which nothing is negotiated."""

    def __init__(self, port: int, host: str = "127.0.0.1", timeout: float = 30) -> None:
        super().__init__((host, port), timeout=timeout, client_id="raw")

    def send(self, request: Message, version: int | None = None, *, has_reply: bool = True) -> None:
        """Send a request in this version, or the highest of the API table; acks=0 has no reply."""
        if version is None:
            version = API_OF[type(request)].highest
        if isinstance(request, ProduceRequest) and request.acks == 0:
            has_reply = False
        super().send(request, version, has_reply=has_reply)

    def must_be_closed(self) -> None:
        """The broker closes the connection and sends nothing before."""
        with contextlib.suppress(ConnectionError):
            assert self._socket.recv(1) == b""

    # --- producing and fetching ---

    def produce(
        self,
        topic: str,
        batch: bytes | bytearray,
        *,
        partition: int = 0,
        acks: int = -1,
        mirrored_at: int = NOT_MIRRORED,
        version: int = NAMED_PRODUCE,
    ) -> PartitionProduceResponse:
        """Append one batch (see `make_batch`); the partition's answer, whatever it is."""
        request = ProduceRequest(
            acks=acks,
            timeout_ms=10_000,
            topic_data=[
                TopicProduceData(
                    name=topic, partition_data=[PartitionProduceData(partition, memoryview(batch))]
                )
            ],
            mirrored_at=mirrored_at,
        )
        answer: PartitionProduceResponse
        (answer,) = self.call(request, version).responses[0].partition_responses
        return answer

    def fetch(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        max_bytes: int = 1 << 20,
        max_wait_ms: int = 0,
        min_bytes: int = 0,
        isolation_level: int = 0,
        version: int = NAMED_FETCH,
    ) -> PartitionData:
        """One partition's answer, whatever it is; `records_in` unpacks its records."""
        wanted = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            isolation_level=isolation_level,
            topics=[FetchTopic(topic, partitions=[wanted])],
        )
        answer: PartitionData
        (answer,) = self.call(request, version).responses[0].partitions
        return answer


def make_batch(
    records: Iterable[tuple[bytes | None, bytes | None, int]],
    *,
    codec: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """A batch of (key, value, timestamp) as a producer sends it."""
    made = [
        Record(delta, timestamp, key, value)
        for delta, (key, value, timestamp) in enumerate(records)
    ]
    return build_batch(
        made,
        base_offset=0,
        last_offset=len(made) - 1,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def batches_in(answer: PartitionData) -> list[memoryview]:
    """The batches of a fetched partition, as they are stored."""
    records = answer.records
    if not records:
        return []
    blob = b"".join(records) if isinstance(records, list) else records
    return list(split_batches(blob))


def records_in(answer: PartitionData, start: int = 0) -> list[Record]:
    """The records a consumer that fetched at `start` would see."""
    return [
        record
        for batch in batches_in(answer)
        for record in read_records(batch, DECODED_LIMIT)
        if record.offset >= start
    ]
