"""Reading offset ranges from real workers: exact, through restarts, and when data is lost."""

import os
import signal

import pytest
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient

from moldau.broker.wire.batch import CONTROL, TRANSACTIONAL, read_header
from moldau.broker.wire.messages.fetch import AbortedTransaction, PartitionData
from moldau.broker.wire.records import Record, build_batch
from moldau.ops.client import TopicPartition
from moldau.ops.client.batches import READ_COMMITTED, batches_of
from moldau.ops.pipeline.errors import DataLoss, PipelineError
from moldau.ops.pipeline.source.decode import decode
from moldau.ops.pipeline.source.fetch import (
    FetchSettings,
    OffsetRange,
    RangeReader,
    connect,
)
from tests.support.brokers.running import Broker
from tests.support.pipeline.spark import create_topic, fill, key_of, value_of


def settings_for(broker: Broker, **options: object) -> FetchSettings:
    return FetchSettings((("127.0.0.1", broker.port),))._replace(**options)  # type: ignore[arg-type]


def offsets_and_keys(
    settings: FetchSettings, wanted: OffsetRange
) -> list[tuple[int, bytes | None]]:
    reader = RangeReader(settings)
    try:
        return [
            pair
            for batches in reader.read(wanted)
            for columns in decode(batches, headers=False)
            for pair in zip(columns.offset.tolist(), columns.key.to_pylist(), strict=True)
        ]
    finally:
        reader.close()


def test_any_range_is_read_exactly(moldau: Broker) -> None:
    create_topic(moldau.bootstrap, "fetch-ranges", 2)
    fill(moldau.bootstrap, "fetch-ranges", 2, 2000)
    place = TopicPartition("fetch-ranges", 1)
    settings = settings_for(moldau, max_bytes=3000)  # many answers
    for start, end in ((0, 2000), (1, 2), (17, 1983), (1999, 2000), (5, 5)):
        found = offsets_and_keys(settings, OffsetRange(place, start, end))
        assert found == [(i, key_of(1, i)) for i in range(start, end)]


def test_reading_continues_when_workers_are_killed(start_moldau: object) -> None:
    broker: Broker = start_moldau(workers=2)  # type: ignore[operator]
    create_topic(broker.bootstrap, "killed", 1)
    fill(broker.bootstrap, "killed", 1, 3000)
    reader = RangeReader(settings_for(broker, max_bytes=4000))
    found: list[tuple[int, object]] = []
    for answer, batches in enumerate(
        reader.read(OffsetRange(TopicPartition("killed", 0), 0, 3000))
    ):
        if answer == 3:
            broker.remember_members()
            for pid in broker.pids("worker"):
                os.kill(pid, signal.SIGKILL)
        for columns in decode(batches, headers=False):
            found += zip(columns.offset.tolist(), columns.value.to_pylist(), strict=True)
    reader.close()
    assert found == [(i, value_of(0, i)) for i in range(3000)]


def test_offsets_that_are_gone_are_an_error_or_skipped(moldau: Broker) -> None:
    create_topic(moldau.bootstrap, "fetch-trimmed", 1)
    fill(moldau.bootstrap, "fetch-trimmed", 1, 500)
    admin = AdminClient({"bootstrap.servers": moldau.bootstrap})
    gone = ConfluentPartition("fetch-trimmed", 0, 123)
    admin.delete_records([gone])[gone].result(20)
    wanted = OffsetRange(TopicPartition("fetch-trimmed", 0), 100, 200)
    with pytest.raises(DataLoss, match=r"100 to 122 .* begins at 123; .*failOnDataLoss=false"):
        offsets_and_keys(settings_for(moldau), wanted)
    lenient = settings_for(moldau, fail_on_data_loss=False)
    assert [offset for offset, _ in offsets_and_keys(lenient, wanted)] == list(range(123, 200))
    assert offsets_and_keys(lenient, wanted._replace(end=110)) == []
    with pytest.raises(DataLoss, match="ends at 500"):
        offsets_and_keys(settings_for(moldau), wanted._replace(start=400, end=501))


def test_no_broker_and_no_such_topic(moldau: Broker) -> None:
    nowhere = FetchSettings((("127.0.0.1", 1),), patience_s=0.2)
    with pytest.raises(PipelineError, match=r"kafka.bootstrap.servers=127.0.0.1:1.*moldau serve"):
        connect(nowhere)
    hasty = settings_for(moldau, patience_s=2)
    with pytest.raises(PipelineError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        offsets_and_keys(hasty, OffsetRange(TopicPartition("no-such-topic", 0), 0, 10))


def test_the_second_bootstrap_server_will_do(moldau: Broker) -> None:
    settings = FetchSettings((("127.0.0.1", 1), ("127.0.0.1", moldau.port)))
    with connect(settings) as cluster:
        assert cluster.bootstrap.port == moldau.port


def _batch(offset: int, producer: int, attributes: int, key: bytes = b"k") -> bytes:
    record = Record(offset, 0, key, b"v")
    return bytes(build_batch([record], base_offset=offset, last_offset=offset,
                             attributes=attributes, producer_id=producer))  # fmt: skip


def test_aborted_transactions_by_the_list_and_the_markers() -> None:
    """Producer 7 aborts its first transaction and commits its second; 8 commits in between."""
    abort, commit = b"\0\0\0\0", b"\0\0\0\1"
    log = [
        (_batch(10, 7, TRANSACTIONAL), True),
        (_batch(11, 8, TRANSACTIONAL), False),
        (_batch(12, -1, 0), False),
        (_batch(13, 7, TRANSACTIONAL), True),
        (_batch(14, 7, TRANSACTIONAL | CONTROL, abort), False),
        (_batch(15, 7, TRANSACTIONAL), False),
        (_batch(16, 8, TRANSACTIONAL | CONTROL, commit), False),
        (_batch(17, 7, TRANSACTIONAL | CONTROL, commit), False),
    ]
    answer = PartitionData(
        records=b"".join(batch for batch, _ in log) + log[0][0][:65],  # the last one is cut off
        aborted_transactions=[AbortedTransaction(7, 9)],
    )
    seen = [
        (header.base_offset, aborted) for header, _, aborted in batches_of(answer, READ_COMMITTED)
    ]
    assert seen == [(read_header(batch).base_offset, aborted) for batch, aborted in log]
    assert not any(aborted for _, _, aborted in batches_of(answer, 0))
