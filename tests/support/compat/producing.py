"""What every client's producer must be able to do."""

from __future__ import annotations

import threading
import time
from itertools import product

import pytest

from moldau.broker.wire.batch import CODEC_MASK, LOG_APPEND_TIME
from tests.support.clients.base import (
    CODECS,
    CREATE_TIME,
    EARLIEST,
    Place,
    Placed,
    Record,
    Refused,
)
from tests.support.clients.base import LOG_APPEND_TIME as STAMPED_BY_BROKER
from tests.support.compat.session import Session, numbered, read, send_all, values

STORED_CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
IDEMPOTENCE = pytest.mark.parametrize("idempotent", [None, False, True])
MESSAGE_TOO_LARGE, INVALID_RECORD, INVALID_TIMESTAMP = 10, 87, 32
MEGABYTE = 1 << 20


def skip_without(kafka: Session, codec: str) -> None:
    if codec not in kafka.client.codecs:
        pytest.skip(f"{kafka.client.name} has no {codec} here: install what it needs for it")


class ProducingTests:
    # --- records arrive as they were sent ---

    @pytest.mark.parametrize("codec", CODECS)
    def test_every_codec(self, kafka: Session, codec: str) -> None:
        skip_without(kafka, codec)
        topic = kafka.topic()
        sent = numbered(200, prefix="a compressible value " * 5)

        placed = kafka.produce(topic, sent, codec=codec, linger_ms=50)

        assert placed == [Placed(0, offset) for offset in range(200)]
        assert values(kafka.read(topic, 200)) == [record.value for record in sent]
        # Stored as the client compressed it.
        assert {batch.attributes & CODEC_MASK for batch in kafka.stored(topic)} == {CODECS[codec]}

    def test_headers(self, kafka: Session) -> None:
        topic = kafka.topic()
        headers = [
            ("twice", b"first"),
            ("twice", b"second"),
            ("null", None),
            ("empty", b""),
            ("", b"no name"),
            ("příliš-žluťoučký-名", "kůň".encode()),
            ("binary", bytes(range(256))),
        ]
        if not kafka.client.takes_null_headers:
            headers.remove(("null", None))

        kafka.produce(topic, [Record(value=b"v", headers=headers), Record(value=b"none")])

        first, second = kafka.read(topic, 2)
        assert first.headers == headers
        assert second.headers == []

    def test_null_and_empty_keys_and_values(self, kafka: Session) -> None:
        topic = kafka.topic()
        sent = list(product([None, b"", b"key"], [None, b"", b"value"]))

        # aiokafka refuses what has neither key nor value, as nothing could be meant by it.
        sent.remove((None, None))
        kafka.produce(topic, [Record(key=key, value=value, partition=0) for key, value in sent])

        got = kafka.read(topic, len(sent))
        assert [(record.key, record.value) for record in got] == sent

    @pytest.mark.parametrize("codec", ["none", "lz4"])
    def test_a_record_of_a_megabyte(self, kafka: Session, codec: str) -> None:
        topic = kafka.topic(configs={"max.message.bytes": str(2 * MEGABYTE)})
        value = bytes(range(256)) * (MEGABYTE // 256)
        settings = {"max_request_bytes": 2 * MEGABYTE, "codec": codec}

        kafka.produce(topic, [Record(value=value), Record(value=b"after")], **settings)

        assert values(kafka.read(topic, 2)) == [value, b"after"]

    def test_timestamps_of_the_client_are_kept(self, kafka: Session) -> None:
        topic = kafka.topic()
        now = int(time.time() * 1000)
        # Not in order, within a batch and between batches.
        times = [now - 5000, now - 9000, 1, now, now - 7000]

        kafka.produce(
            topic, [Record(value=b"v", partition=0, timestamp=at) for at in times], linger_ms=50
        )

        got = kafka.read(topic, len(times))
        assert [record.timestamp for record in got] == times
        assert {record.timestamp_type for record in got} == {CREATE_TIME}

    # --- where records go ---

    def test_keys_choose_partitions_led_by_different_workers(self, kafka: Session) -> None:
        topic = kafka.topic(partitions=6)
        sent = [
            Record(key=f"key-{number % 30}".encode(), value=b"%d" % number) for number in range(600)
        ]

        placed = kafka.produce(topic, sent)

        partition_of: dict[bytes | None, int] = {}
        for record, (partition, _) in zip(sent, placed, strict=True):
            assert partition_of.setdefault(record.key, partition) == partition
        assert len(set(partition_of.values())) == 6
        assert set(kafka.admin.leaders(topic).values()) == {0, 1}
        got = kafka.read(topic, 600, partitions=6)
        assert {(r.partition, r.offset): (r.key, r.value) for r in got} == {
            tuple(place): (r.key, r.value) for place, r in zip(placed, sent, strict=True)
        }

    # --- acknowledgements ---

    @pytest.mark.parametrize("acks", [0, 1, -1])
    def test_acks(self, kafka: Session, acks: int) -> None:
        topic = kafka.topic()

        placed = kafka.produce(topic, numbered(100), acks=acks, idempotent=False)

        if acks != 0:
            assert placed == [Placed(0, offset) for offset in range(100)]
        assert values(kafka.read(topic, 100)) == [record.value for record in numbered(100)]

    @IDEMPOTENCE
    def test_batches_of_100_000_small_records(
        self, kafka: Session, idempotent: bool | None
    ) -> None:
        count = 100_000 if idempotent is None else 10_000
        topic = kafka.topic()
        sent = numbered(count)

        placed = kafka.produce(topic, sent, linger_ms=20, idempotent=idempotent)

        assert placed == [Placed(0, offset) for offset in range(count)]
        assert values(kafka.read(topic, count)) == [record.value for record in sent]

    def test_two_producers_at_once(self, kafka: Session) -> None:
        topic = kafka.topic()
        producers = [kafka.producer(idempotent=True), kafka.producer(idempotent=False)]
        placed: dict[int, list[Placed]] = {}

        def send(index: int) -> None:
            placed[index] = []
            for round_ in range(20):
                batch = numbered(50, prefix=f"{index}-{round_:02}")
                placed[index] += send_all(producers[index], topic, batch)

        threads = [threading.Thread(target=send, args=(index,)) for index in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        got = values(kafka.read(topic, 2000))
        for index in (0, 1):
            offsets = [place.offset for place in placed[index]]
            assert offsets == sorted(offsets)
            own = [r.value for round_ in range(20) for r in numbered(50, f"{index}-{round_:02}")]
            assert [got[offset] for offset in offsets] == own
        assert sorted(p.offset for one in placed.values() for p in one) == list(range(2000))

    # --- what topics make of records ---

    def test_log_append_time(self, kafka: Session) -> None:
        topic = kafka.topic(configs={"message.timestamp.type": "LogAppendTime"})
        before = int(time.time() * 1000)

        kafka.produce(topic, [Record(value=b"v", timestamp=1000), Record(value=b"w")])

        after = int(time.time() * 1000)
        got = kafka.read(topic, 2)
        assert all(before <= record.timestamp <= after for record in got)
        assert {record.timestamp_type for record in got} == {STAMPED_BY_BROKER}
        assert all(batch.attributes & LOG_APPEND_TIME for batch in kafka.stored(topic))

    @pytest.mark.parametrize("stored_as", STORED_CODECS)
    def test_a_topic_with_a_codec_of_its_own(self, kafka: Session, stored_as: str) -> None:
        stored_codec = "none" if stored_as == "uncompressed" else stored_as
        skip_without(kafka, stored_codec)
        topic = kafka.topic(configs={"compression.type": stored_as})
        sent = [
            Record(
                key=b"%d" % number,
                value=b"a compressible value " * 10,
                timestamp=1_700_000_000_000 + number,
                headers=[("number", b"%d" % number), ("empty", b"")],
                partition=0,
            )
            for number in range(50)
        ]

        for codec in ("none", "gzip", "lz4"):
            kafka.produce(topic, sent, codec=codec, linger_ms=50)

        got = kafka.read(topic, 150)
        assert [
            Record(key=r.key, value=r.value, timestamp=r.timestamp, headers=r.headers, partition=0)
            for r in got
        ] == 3 * sent
        codecs = {batch.attributes & CODEC_MASK for batch in kafka.stored(topic)}
        assert codecs == {CODECS[stored_codec]}

    @IDEMPOTENCE
    def test_max_message_bytes(self, kafka: Session, idempotent: bool | None) -> None:
        topic = kafka.topic(configs={"max.message.bytes": "10000"})
        kafka.produce(topic, [Record(value=b"small", partition=0)], idempotent=idempotent)

        with pytest.raises(Refused) as refusal:
            kafka.produce(topic, [Record(value=b"x" * 20_000)], idempotent=idempotent)

        assert refusal.value.code == MESSAGE_TOO_LARGE
        kafka.produce(topic, [Record(value=b"small again")], idempotent=idempotent)
        assert values(kafka.read(topic, 2)) == [b"small", b"small again"]

    @IDEMPOTENCE
    def test_a_compacted_topic_refuses_records_without_keys(
        self, kafka: Session, idempotent: bool | None
    ) -> None:
        topic = kafka.topic(configs={"cleanup.policy": "compact"})

        with pytest.raises(Refused) as refusal:
            kafka.produce(topic, [Record(value=b"no key")], idempotent=idempotent)

        assert refusal.value.code == kafka.sees(INVALID_RECORD)
        kafka.produce(topic, [Record(key=b"k", value=b"a key")], idempotent=idempotent)
        assert values(kafka.read(topic, 1)) == [b"a key"]

    def test_a_producer_goes_on_after_a_refusal(self, kafka: Session) -> None:
        # Without idempotence: kafka-python and aiokafka give an idempotent producer up then.
        topic = kafka.topic(configs={"max.message.bytes": "10000"})
        producer = kafka.producer(idempotent=False)

        for number in range(3):
            with pytest.raises(Refused):
                send_all(producer, topic, [Record(value=b"x" * 20_000, partition=0)])
            send_all(producer, topic, [Record(value=b"%d" % number, partition=0)])

        assert values(kafka.read(topic, 3)) == [b"0", b"1", b"2"]

    def test_a_timestamp_too_far_ahead_is_refused(self, kafka: Session) -> None:
        topic = kafka.topic()
        in_a_day = int(time.time() * 1000) + 86_400_000

        with pytest.raises(Refused) as refusal:
            kafka.produce(topic, [Record(value=b"v", timestamp=in_a_day)])

        assert refusal.value.code == INVALID_TIMESTAMP

    # --- topics made on the way ---

    def test_producing_creates_a_topic(self, kafka: Session) -> None:
        topic = kafka.new_name()

        placed = kafka.produce(topic, numbered(10, partition=None))

        assert placed == [Placed(0, offset) for offset in range(10)]
        assert values(kafka.read(topic, 10)) == [record.value for record in numbered(10)]
        kafka.wait_for_topics(topic)

    def test_one_producer_writes_to_many_topics(self, kafka: Session) -> None:
        topics = [kafka.topic(partitions=2) for _ in range(8)]
        producer = kafka.producer()

        for number in range(200):
            for topic in topics:
                producer.send(topic, Record(value=b"%d" % number, partition=number % 2))
        producer.flush()

        consumer = kafka.consumer()
        consumer.assign({Place(topic, index): EARLIEST for topic in topics for index in (0, 1)})
        got = read(consumer, 8 * 200)
        for topic in topics:
            for index in (0, 1):
                own = [r.value for r in got if r.place == (topic, index)]
                assert own == [b"%d" % number for number in range(index, 200, 2)]
