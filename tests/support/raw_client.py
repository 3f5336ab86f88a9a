"""A blocking client that speaks the protocol with Moldau's own codecs, one connection each.

For what real clients hide: exact error codes, log start offsets, batches as they are stored, one
worker rather than another. The codecs themselves are checked against other people's elsewhere.

    with RawClient(port) as client:
        response = client.call(ListOffsetsRequest(...), version=7)
"""

import socket
from collections.abc import Iterable
from typing import Any, Self

from broker.wire.apis import APIS, Api
from broker.wire.batch import split_batches
from broker.wire.frame import LENGTH, read_response, request_frame
from broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from broker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from broker.wire.records import Record, build_batch, read_records
from broker.wire.schema import Message

_BY_REQUEST: dict[type[Message], Api] = {api.request: api for api in APIS.values()}
# The last versions that name topics rather than ids.
NAMED_PRODUCE, NAMED_FETCH = 12, 12
DECODED_LIMIT = 1 << 28


class RawClient:
    """One connection. `call` sends and waits; `send` and `receive` are its halves."""

    def __init__(self, port: int, host: str = "127.0.0.1", timeout: float = 30) -> None:
        self._socket = socket.create_connection((host, port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0
        self._sent: dict[int, tuple[Api, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def call(self, request: Message, version: int | None = None) -> Any:
        """The response; `version` is the highest there is unless given."""
        self.send(request, version)
        return self.receive()

    def send(self, request: Message, version: int | None = None) -> int:
        """Send without waiting; gives the correlation id."""
        api = _BY_REQUEST[type(request)]
        chosen = api.highest if version is None else version
        self._correlation_id += 1
        self._sent[self._correlation_id] = api, chosen
        self._socket.sendall(request_frame(api, chosen, self._correlation_id, "raw", request))
        return self._correlation_id

    def receive(self) -> Any:
        """The next response, whichever request it belongs to."""
        (size,) = LENGTH.unpack(self._exactly(LENGTH.size))
        frame = self._exactly(size)
        (correlation_id,) = LENGTH.unpack_from(frame)
        api, version = self._sent.pop(correlation_id)
        _, message = read_response(api, version, frame)
        return message

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(min(size - len(data), 1 << 20))
            if not piece:
                raise ConnectionError(f"the broker closed the connection, {size - len(data)} short")
            data += piece
        return bytes(data)

    # --- the two everybody needs ---

    def produce(
        self,
        topic: str,
        batch: bytes | bytearray,
        *,
        partition: int = 0,
        acks: int = -1,
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
        version: int = NAMED_FETCH,
    ) -> PartitionData:
        """One partition's answer, whatever it is; `records_in` unpacks its records."""
        wanted = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
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
