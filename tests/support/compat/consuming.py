"""What every client's consumer must be able to do, with partitions assigned by hand."""

from __future__ import annotations

import threading

import pytest

from tests.support.clients.base import EARLIEST, LATEST, Place, Received, Record, Refused
from tests.support.compat.session import Session, numbered, read, send_all, values

OFFSET_OUT_OF_RANGE = 1
START_MS = 1_700_000_000_000
ISOLATION = pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])


def topic_of_batches(kafka: Session, *counts: int) -> str:
    """A topic that consists of batches with so many records each.

    A client that does not get the CPU for longer than it lingers sends what it has: then the next
    topic is tried, and it lingers longer.
    """
    for linger_ms in (200, 1000, 5000):
        topic = kafka.topic()
        for count in counts:
            kafka.produce(topic, numbered(count), linger_ms=linger_ms)
        stored = [batch.record_count for batch in kafka.stored(topic)]
        if stored == list(counts):
            return topic
    raise AssertionError(f"stored as batches of {stored} records")


class ConsumingTests:
    # --- where reading starts ---

    @ISOLATION
    def test_from_the_beginning(self, kafka: Session, isolation: str) -> None:
        topic = kafka.topic()
        kafka.produce(topic, numbered(500))

        got = kafka.read(topic, 500, isolation=isolation)

        assert values(got) == [record.value for record in numbered(500)]
        assert [record.offset for record in got] == list(range(500))

    def test_from_the_end(self, kafka: Session) -> None:
        topic = kafka.topic()
        kafka.produce(topic, numbered(10, "old"))
        consumer = kafka.consumer()
        producer = kafka.producer()
        consumer.assign({Place(topic): LATEST})

        # Clients look for the end when they like; what is written after that they must see.
        got: list[Received] = []
        end = 10
        while not got:
            assert end < 300, "nothing of what was written came"
            send_all(producer, topic, [Record(value=b"%d" % end, partition=0)])
            end += 1
            got = consumer.poll(0.1)
        got += read(consumer, end - 1 - got[-1].offset)

        assert got[0].offset >= 10
        assert [record.offset for record in got] == list(range(got[0].offset, end))
        assert values(got) == [b"%d" % record.offset for record in got]

    @pytest.mark.parametrize("offset", [1, 50, 99, 100, 150])
    def test_from_the_middle_of_a_batch(self, kafka: Session, offset: int) -> None:
        topic = topic_of_batches(kafka, 100, 100)
        consumer = kafka.consumer()

        consumer.assign({Place(topic): offset})

        got = read(consumer, 200 - offset)
        assert [record.offset for record in got] == list(range(offset, 200))
        assert consumer.position(Place(topic)) == 200

    def test_seek(self, kafka: Session) -> None:
        topic = kafka.topic()
        kafka.produce(topic, numbered(300))
        consumer = kafka.consumer()
        consumer.assign({Place(topic): EARLIEST})
        read(consumer, 300)

        for offset in (299, 0, 150, 7):
            consumer.seek(Place(topic), offset)
            got = read(consumer, 300 - offset)
            assert [record.offset for record in got] == list(range(offset, 300))
            assert consumer.position(Place(topic)) == 300

    @pytest.mark.parametrize("reset", ["earliest", "latest"])
    def test_past_the_end_starts_where_the_consumer_says(self, kafka: Session, reset: str) -> None:
        topic = kafka.topic()
        kafka.produce(topic, numbered(10))
        consumer = kafka.consumer(offset_reset=reset)

        consumer.assign({Place(topic): 1000})

        if reset == "earliest":
            assert [record.offset for record in read(consumer, 10)] == list(range(10))
        else:
            assert consumer.poll(1.0) == []
            kafka.produce(topic, numbered(1, "new"))
            assert [record.offset for record in read(consumer, 1)] == [10]

    def test_past_the_end_is_an_error_for_a_consumer_that_says_so(self, kafka: Session) -> None:
        topic = kafka.topic()
        kafka.produce(topic, numbered(10))
        consumer = kafka.consumer(offset_reset="none")
        consumer.assign({Place(topic): 1000})

        with pytest.raises(Refused) as refusal:
            read(consumer, 1)

        assert refusal.value.code == OFFSET_OUT_OF_RANGE

    def test_before_the_start_starts_at_the_start(self, kafka: Session) -> None:
        topic = kafka.topic()
        kafka.produce(topic, numbered(20))
        assert kafka.admin.delete_records(Place(topic), 13) == 13
        consumer = kafka.consumer()

        consumer.assign({Place(topic): 2})

        assert [record.offset for record in read(consumer, 7)] == list(range(13, 20))
        assert consumer.watermarks(Place(topic)) == (13, 20)

    # --- times ---

    def test_from_a_timestamp(self, kafka: Session) -> None:
        topic = kafka.topic()
        for first in (0, 100, 200):  # three batches, records ten milliseconds apart
            records = [
                Record(value=b"%d" % n, partition=0, timestamp=START_MS + 10 * n)
                for n in range(first, first + 100)
            ]
            kafka.produce(topic, records, linger_ms=200)
        consumer = kafka.consumer()
        place = Place(topic)

        asked = {
            0: 0,
            START_MS: 0,
            START_MS + 1: 1,
            START_MS + 10 * 42: 42,
            START_MS + 10 * 99 + 5: 100,
            START_MS + 10 * 250: 250,
            START_MS + 10 * 299: 299,
            START_MS + 10 * 299 + 1: None,
        }
        found = {at: consumer.offsets_for_times({place: at})[place] for at in asked}

        assert found == asked
        consumer.assign({place: found[START_MS + 10 * 250] or 0})
        assert [record.offset for record in read(consumer, 50)] == list(range(250, 300))

    def test_a_timestamp_in_many_partitions(self, kafka: Session) -> None:
        topic = kafka.topic(partitions=5)
        records = [
            Record(value=b"v", partition=p, timestamp=START_MS + 1000 * p + n)
            for p in range(4)
            for n in range(10)
        ]
        kafka.produce(topic, records)
        consumer = kafka.consumer()

        found = consumer.offsets_for_times({Place(topic, p): START_MS + 1005 for p in range(5)})

        assert found == {
            Place(topic, 0): None,
            Place(topic, 1): 5,
            Place(topic, 2): 0,
            Place(topic, 3): 0,
            Place(topic, 4): None,  # empty
        }

    # --- positions ---

    def test_positions_and_watermarks(self, kafka: Session) -> None:
        topic = kafka.topic(partitions=2)
        kafka.produce(topic, numbered(30, partition=0))
        consumer = kafka.consumer()

        assert consumer.watermarks(Place(topic, 0)) == (0, 30)
        assert consumer.watermarks(Place(topic, 1)) == (0, 0)
        consumer.assign({Place(topic, 0): 12})
        got = read(consumer, 18)
        assert consumer.position(Place(topic, 0)) == got[-1].offset + 1 == 30
        kafka.admin.delete_records(Place(topic, 0), 25)
        assert consumer.watermarks(Place(topic, 0)) == (25, 30)

    # --- fetching ---

    def test_batches_larger_than_a_fetch(self, kafka: Session) -> None:
        topic = kafka.topic(partitions=2)
        sent = [Record(value=b"%d " % n + b"x" * 500, partition=n % 2) for n in range(400)]
        kafka.produce(topic, sent, linger_ms=200, batch_bytes=60_000)
        assert max(batch.size for batch in kafka.stored(topic)) > 10_000

        got = kafka.read(topic, 400, partitions=2, partition_fetch_bytes=1000)

        for partition in (0, 1):
            own = [record for record in got if record.partition == partition]
            assert values(own) == [r.value for r in sent if r.partition == partition]

    def test_many_partitions(self, kafka: Session) -> None:
        topic = kafka.topic(partitions=64)
        kafka.produce(topic, [Record(value=b"%d" % n, partition=n % 64) for n in range(1280)])

        got = kafka.read(topic, 1280, partitions=64)

        for partition in range(64):
            own = [record.value for record in got if record.partition == partition]
            assert own == [b"%d" % n for n in range(partition, 1280, 64)]

    @ISOLATION
    def test_a_waiting_consumer_is_woken(self, kafka: Session, isolation: str) -> None:
        topic = kafka.topic(partitions=2)  # led by different workers
        producer = kafka.producer()
        send_all(producer, topic, [Record(value=b"first", partition=p) for p in (0, 1)])
        # A broker that only looked again when the wait is over would be too late for `read`.
        consumer = kafka.consumer(fetch_max_wait_ms=25_000, isolation=isolation)
        consumer.assign({Place(topic, 0): 1, Place(topic, 1): 1})
        assert consumer.poll(0.5) == []

        for number in range(10):
            for partition in (0, 1):
                send_all(producer, topic, [Record(value=b"%d" % number, partition=partition)])
                (got,) = read(consumer, 1, patience_s=15)
                assert (got.value, got.partition) == (b"%d" % number, partition)

    def test_reading_while_it_is_written(self, kafka: Session) -> None:
        topic = kafka.topic(partitions=2)
        consumer = kafka.consumer()
        consumer.assign({Place(topic, 0): EARLIEST, Place(topic, 1): EARLIEST})
        faults: list[BaseException] = []

        def write() -> None:
            try:
                producer = kafka.producer()
                for round_ in range(30):
                    for partition in (0, 1):
                        send_all(producer, topic, numbered(100, f"{round_:02}", partition))
            except BaseException as fault:
                faults.append(fault)

        writer = threading.Thread(target=write)
        writer.start()
        got = read(consumer, 6000)
        writer.join()

        assert faults == []
        for partition in (0, 1):
            own = [record for record in got if record.partition == partition]
            assert [record.offset for record in own] == list(range(3000))
            assert values(own) == [r.value for n in range(30) for r in numbered(100, f"{n:02}")]

    def test_a_fetch_that_wants_more_than_there_is(self, kafka: Session) -> None:
        topic = kafka.topic()
        kafka.produce(topic, numbered(3))

        got = kafka.read(topic, 3, fetch_min_bytes=1_000_000, fetch_max_wait_ms=300)

        assert values(got) == [record.value for record in numbered(3)]
