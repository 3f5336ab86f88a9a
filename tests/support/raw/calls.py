"""What tests of logs ask a broker for, in one line each, over a `RawClient`."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from moldau.broker.store import keys
from moldau.broker.store.streams import CleanPart, decode_part
from moldau.broker.wire.batch import headers, read_header
from moldau.broker.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from moldau.broker.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from moldau.broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.broker.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.broker.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.broker.wire.records import Record
from tests.support.brokers.running import Broker
from tests.support.raw.client import RawClient, batches_in, records_in

EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
SET = 0


@contextmanager
def worker_clients(broker: Broker) -> Iterator[list[RawClient]]:
    """A connection to each worker, by index."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(RawClient(entry["port"])) for entry in broker.processes("worker")
        ]


def create_topic(
    client: RawClient, name: str, configs: Mapping[str, object] | None = None, partitions: int = 1
) -> None:
    chosen = [CreatableTopicConfig(key, str(value)) for key, value in (configs or {}).items()]
    topic = CreatableTopic(name, partitions, 1, configs=chosen)
    (answer,) = client.call(CreateTopicsRequest(topics=[topic])).topics
    assert answer.error_code == 0, answer


def delete_topic(client: RawClient, name: str) -> None:
    request = DeleteTopicsRequest([DeleteTopicState(name)], timeout_ms=10_000)
    (answer,) = client.call(request).responses
    assert answer.error_code == 0, answer


def alter_topic(client: RawClient, name: str, configs: Mapping[str, object]) -> None:
    _alter(client, TOPIC_RESOURCE, name, configs)


def alter_brokers(client: RawClient, configs: Mapping[str, object]) -> None:
    """Dynamic configuration of every broker."""
    _alter(client, BROKER_RESOURCE, "", configs)


def _alter(client: RawClient, kind: int, name: str, configs: Mapping[str, object]) -> None:
    wanted = [AlterableConfig(key, SET, str(value)) for key, value in configs.items()]
    resource = AlterConfigsResource(kind, name, wanted)
    (answer,) = client.call(IncrementalAlterConfigsRequest(resources=[resource])).responses
    assert answer.error_code == 0, answer


def list_offset(
    client: RawClient,
    topic: str,
    timestamp: int,
    *,
    partition: int = 0,
    isolation_level: int = 0,
    version: int = 11,
) -> ListOffsetsPartitionResponse:
    wanted = ListOffsetsPartition(partition, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation_level, topics=[ListOffsetsTopic(topic, [wanted])]
    )
    answer: ListOffsetsPartitionResponse
    (answer,) = client.call(request, version).topics[0].partitions
    return answer


def delete_records(
    client: RawClient, topic: str, offset: int, *, partition: int = 0
) -> DeleteRecordsPartitionResult:
    wanted = DeleteRecordsPartition(partition, offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(topic, [wanted])], timeout_ms=10_000)
    answer: DeleteRecordsPartitionResult
    (answer,) = client.call(request).topics[0].partitions
    return answer


def partition_size(clients: list[RawClient], topic: str, partition: int = 0) -> int:
    """What DescribeLogDirs says, summed over all workers: only the leader counts a partition."""
    return sum(
        item.partition_size
        for client in clients
        for entry in client.call(DescribeLogDirsRequest(topics=None)).results[0].topics
        if entry.name == topic
        for item in entry.partitions
        if item.partition_index == partition
    )


def read_all(client: RawClient, topic: str, offset: int = 0, **options: int) -> list[Record]:
    """The records a consumer sees from `offset` to the high watermark of its first fetch."""
    records: list[Record] = []
    high_watermark = None
    while high_watermark is None or offset < high_watermark:
        answer = client.fetch(topic, offset, **options)
        assert answer.error_code == 0, f"offset {offset}: error {answer.error_code}"
        high_watermark = answer.high_watermark if high_watermark is None else high_watermark
        batches = batches_in(answer)
        if not batches:
            assert offset >= high_watermark, f"nothing at offset {offset} of {high_watermark}"
            break
        records += records_in(answer, offset)
        # Not the last record's: a compacted batch may end with offsets that have none.
        offset = read_header(batches[-1]).next_offset
    return records


class StoredLog:
    """A partition's log as it lies in the store, seen through a redis-py client."""

    def __init__(self, store: Any, topic: str, partition: int = 0) -> None:
        self._store = store
        self.key = keys.stream(topic, 0, partition)

    @property
    def part(self) -> CleanPart:
        return decode_part(self._store.hget(keys.state(self.key), "clean"))

    @property
    def clean_key(self) -> bytes:
        return keys.clean(self.key, self.part.generation)

    @property
    def generations(self) -> list[bytes]:
        """The streams there are beside the live one."""
        return sorted(
            key
            for key in self._store.keys(b"{%b}:clean:*" % self.key)
            if not key.endswith(b":times")
        )

    @property
    def is_being_compacted(self) -> bool:
        """Is there a generation that is not yet current?"""
        return any(int(key.rpartition(b":")[2]) > self.part.generation for key in self.generations)

    def entries(self) -> int:
        return int(self._store.xlen(self.key))

    def clean_entries(self) -> int:
        return int(self._store.xlen(self.clean_key))

    def memory(self) -> int:
        """Bytes of memory the streams take."""
        return sum(
            int(self._store.memory_usage(key, samples=0) or 0)
            for key in (self.key, *self.generations)
        )

    def bytes_from(self, offset: int) -> int:
        """Bytes of the entries that hold `offset` or something after it."""
        cleaned = self._store.xrange(self.clean_key)
        live = self._store.xrange(self.key, f"{self.part.end}-0")
        blobs = [fields[b"b"] for _, fields in cleaned + live]
        return sum(
            len(blob) for blob in blobs if max(h.next_offset for h in headers(blob)) > offset
        )

    def index_points(self) -> list[int]:
        """Offsets in the time index of the live stream."""
        members = self._store.zrange(keys.times(self.key), 0, -1)
        return sorted(int(member.partition(b":")[0]) for member in members)
