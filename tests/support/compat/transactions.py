"""What every client's transactions must be able to do; a module per client runs them."""

from __future__ import annotations

import time

import pytest

from moldau.broker.wire.messages.describe_groups import DescribeGroupsRequest
from moldau.broker.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tests.support.brokers.running import Broker, wait_until
from tests.support.clients.base import (
    EARLIEST,
    Consumer,
    Place,
    Producer,
    Received,
    Record,
    Refused,
)
from tests.support.compat.session import Session, numbered, read, send_all, values
from tests.support.raw.client import RawClient
from tests.support.raw.group import coordinator_port

UNKNOWN_MEMBER_ID, INVALID_TRANSACTION_TIMEOUT, PRODUCER_FENCED = 25, 50, 90
FENCED = {47, PRODUCER_FENCED}  # what a request of an old epoch is answered with
PARTITIONS = 6
PATIENCE_S = 60.0


def marked(count: int, prefix: str) -> list[Record]:
    """Records over all partitions, whose values tell which they are."""
    return [
        record
        for partition in range(PARTITIONS)
        for record in numbered(count, f"{prefix}-{partition}", partition)
    ]


def by_partition(received: list[Received]) -> dict[int, list[bytes | None]]:
    return {
        index: values(one for one in received if one.partition == index)
        for index in range(PARTITIONS)
    }


def sent(records: list[Record]) -> dict[int, list[bytes | None]]:
    return {
        index: [record.value for record in records if record.partition == index]
        for index in range(PARTITIONS)
    }


class TransactionTests:
    # --- what readers see ---

    def test_a_commit_over_several_partitions(self, kafka: Session) -> None:
        topic = kafka.topic(PARTITIONS)
        producer = transactional(kafka)
        records = marked(20, "committed")
        committed = reader(kafka, topic, "read_committed")

        producer.begin()
        send_all(producer, topic, records)
        early = read(reader(kafka, topic, "read_uncommitted"), len(records))
        assert by_partition(early) == sent(records)
        assert committed.poll(0.5) == []
        producer.commit()

        assert by_partition(read(committed, len(records))) == sent(records)

    def test_an_abort(self, kafka: Session) -> None:
        topic = kafka.topic(PARTITIONS)
        producer = transactional(kafka)
        aborted, committed = marked(20, "aborted"), marked(5, "committed")

        producer.begin()
        send_all(producer, topic, aborted)
        producer.abort()
        producer.begin()
        send_all(producer, topic, committed)
        producer.commit()

        got = read(reader(kafka, topic, "read_committed"), len(committed))
        assert by_partition(got) == sent(committed)
        both = read(reader(kafka, topic, "read_uncommitted"), len(aborted) + len(committed))
        assert by_partition(both) == sent([*aborted, *committed])

    def test_the_end_of_a_transaction_takes_an_offset(self, kafka: Session) -> None:
        topic = kafka.topic()
        producer = transactional(kafka)
        for commit in (True, False, True):
            producer.begin()
            send_all(producer, topic, numbered(1))
            producer.commit() if commit else producer.abort()
        consumer = kafka.consumer(isolation="read_committed")
        consumer.assign({Place(topic): EARLIEST})

        assert [record.offset for record in read(consumer, 2)] == [0, 4]
        wait_until(lambda: stands(consumer, Place(topic)) == 6, PATIENCE_S, "it passes the last")
        assert consumer.watermarks(Place(topic)) == (0, 6)

    def test_transactions_without_records(self, kafka: Session) -> None:
        topic = kafka.topic()
        producer = transactional(kafka)
        for _ in range(3):
            producer.begin()
            producer.commit()
            producer.begin()
            producer.abort()

        commit(producer, topic, numbered(1))

        assert [record.offset for record in kafka.read(topic, 1)] == [0]

    def test_many_small_transactions_in_a_row(self, kafka: Session) -> None:
        topic = kafka.topic(PARTITIONS)
        producer = transactional(kafka)
        kept = []
        for number in range(120):
            record = Record(value=b"%04d" % number, partition=number % PARTITIONS)
            producer.begin()
            send_all(producer, topic, [record])
            if number % 4 == 3:
                producer.abort()
            else:
                producer.commit()
                kept.append(record)

        got = read(reader(kafka, topic, "read_committed"), len(kept))
        assert by_partition(got) == sent(kept)

    def test_transactions_of_two_producers_at_once(self, kafka: Session) -> None:
        topic = kafka.topic(PARTITIONS)
        one, two = transactional(kafka), transactional(kafka)
        kept = []
        for turn in range(8):
            one.begin()
            two.begin()
            first, second = marked(2, f"{turn}-one"), marked(2, f"{turn}-two")
            send_all(one, topic, first)
            send_all(two, topic, second)
            (one, two)[turn % 2].abort()
            (two, one)[turn % 2].commit()
            kept += (second, first)[turn % 2]

        got = read(reader(kafka, topic, "read_committed"), len(kept))
        assert by_partition(got) == sent(kept)

    def test_readers_wait_for_the_oldest_open_transaction(self, kafka: Session) -> None:
        topic = kafka.topic()
        old, new = transactional(kafka), transactional(kafka)
        commit(new, topic, numbered(1, "before"))
        old.begin()
        send_all(old, topic, numbered(1, "old"))
        commit(new, topic, numbered(1, "new"))
        kafka.produce(topic, numbered(1, "plain"))
        consumer = kafka.consumer(isolation="read_committed")
        consumer.assign({Place(topic): EARLIEST})

        assert values(read(consumer, 1)) == [b"before-000000"]
        assert consumer.poll(0.5) == []
        old.commit()

        assert values(read(consumer, 3)) == [b"old-000000", b"new-000000", b"plain-000000"]

    def test_a_reader_that_begins_while_everything_is_open(self, kafka: Session) -> None:
        topic = kafka.topic(PARTITIONS)
        producer = transactional(kafka)
        producer.begin()
        send_all(producer, topic, marked(2, "open"))

        consumer = reader(kafka, topic, "read_committed")
        assert consumer.poll(1.0) == []
        producer.commit()

        assert by_partition(read(consumer, 2 * PARTITIONS)) == sent(marked(2, "open"))

    # --- offsets ---

    def test_consume_transform_produce(self, kafka: Session) -> None:
        """Some transactions are aborted, and one member is replaced by another in between."""
        source, target = kafka.topic(PARTITIONS), kafka.topic(PARTITIONS)
        records = marked(40, "item")
        kafka.produce(source, records)
        group, transactional_id = f"group-{kafka.new_name()}", kafka.new_name()

        done, turn = 0, 0
        while done < len(records):
            consumer = kafka.consumer(group=group, isolation="read_committed")
            producer = transactional(kafka, transactional_id)
            consumer.subscribe([source])
            while done < len(records):
                batch = read(consumer, 1)[:50]
                producer.begin()
                for one in batch:
                    producer.send(target, Record(value=one.value, partition=one.partition))
                offsets = {one.place: one.offset + 1 for one in batch}
                producer.send_offsets(offsets, consumer)
                turn += 1
                if turn % 3 == 2:
                    producer.abort()
                    break  # the next one begins where the last commit was
                producer.commit()
                done += len(batch)
                for place, offset in offsets.items():
                    wait_committed(consumer, place, offset)
                    consumer.seek(place, offset)
                if turn % 3 == 0:
                    break
            consumer.close()
            producer.close()

        got = read(reader(kafka, target, "read_committed"), len(records))
        assert by_partition(got) == sent(records)

    def test_offsets_of_an_open_transaction_are_not_committed(self, kafka: Session) -> None:
        topic = kafka.topic()
        kafka.produce(topic, numbered(10))
        consumer = kafka.consumer(group=f"group-{kafka.new_name()}")
        consumer.subscribe([topic])
        read(consumer, 10)
        producer = transactional(kafka)

        producer.begin()
        producer.send_offsets({Place(topic): 4}, consumer)
        producer.abort()
        assert consumer.committed(Place(topic)) is None
        producer.begin()
        producer.send_offsets({Place(topic): 7}, consumer)
        producer.commit()

        wait_committed(consumer, Place(topic), 7)

    def test_offsets_of_a_member_that_was_removed(self, kafka: Session) -> None:
        """They are refused, if the client says whose they are."""
        topic = kafka.topic()
        kafka.produce(topic, numbered(10))
        group = f"group-{kafka.new_name()}"
        consumer = kafka.consumer(group=group)
        consumer.subscribe([topic])
        read(consumer, 10)
        producer = transactional(kafka)
        producer.begin()
        remove_members(kafka.broker, group)

        if kafka.client.names_members:
            with pytest.raises(Refused) as refusal:
                producer.send_offsets({Place(topic): 7}, consumer)
            assert refusal.value.code == UNKNOWN_MEMBER_ID
            producer.abort()
        else:
            producer.send_offsets({Place(topic): 7}, consumer)
            producer.commit()

        other = kafka.consumer(group=group)
        if kafka.client.names_members:
            assert other.committed(Place(topic)) is None
        else:
            wait_committed(other, Place(topic), 7)

    # --- fencing ---

    def test_a_second_producer_fences_the_first(self, kafka: Session) -> None:
        topic = kafka.topic(PARTITIONS)
        transactional_id = kafka.new_name()
        first = transactional(kafka, transactional_id)
        first.begin()
        send_all(first, topic, marked(2, "first"))

        second = transactional(kafka, transactional_id)
        second.begin()
        send_all(second, topic, marked(2, "second"))
        with pytest.raises(Refused) as refusal:
            first.commit()
        assert refusal.value.code in FENCED
        second.commit()

        got = read(reader(kafka, topic, "read_committed"), 2 * PARTITIONS)
        assert by_partition(got) == sent(marked(2, "second"))

    def test_a_fenced_producer_cannot_send(self, kafka: Session) -> None:
        topic = kafka.topic()
        transactional_id = kafka.new_name()
        first = transactional(kafka, transactional_id)
        first.begin()
        send_all(first, topic, numbered(1, "first"))

        second = transactional(kafka, transactional_id)
        with pytest.raises(Refused) as refusal:
            send_all(first, topic, numbered(1, "late"))
        assert refusal.value.code in FENCED
        commit(second, topic, numbered(1, "second"))

        got = read(reader(kafka, topic, "read_committed", 1), 1)
        assert values(got) == [b"second-000000"]

    # --- timeouts ---

    def test_a_transaction_over_its_timeout_is_aborted(self, kafka: Session) -> None:
        topic = kafka.topic(PARTITIONS)
        transactional_id = kafka.new_name()
        producer = transactional(kafka, transactional_id, transaction_timeout_ms=1_000)
        producer.begin()
        send_all(producer, topic, marked(2, "late"))

        # What follows can be read as soon as it is aborted.
        kafka.produce(topic, marked(1, "plain"))
        got = read(reader(kafka, topic, "read_committed"), PARTITIONS)
        assert by_partition(got) == sent(marked(1, "plain"))
        with pytest.raises(Refused) as refusal:
            producer.commit()
        assert refusal.value.code in FENCED

        again = transactional(kafka, transactional_id)
        commit(again, topic, marked(1, "again"))
        got = read(reader(kafka, topic, "read_committed"), 2 * PARTITIONS)
        assert by_partition(got) == sent([*marked(1, "plain"), *marked(1, "again")])

    def test_a_timeout_that_is_too_long_is_refused(self, kafka: Session) -> None:
        with pytest.raises(Refused) as refusal:
            transactional(kafka, transaction_timeout_ms=3_600_000)

        assert refusal.value.code == INVALID_TRANSACTION_TIMEOUT


# --- helpers ---


def transactional(
    kafka: Session, transactional_id: str | None = None, **settings: object
) -> Producer:
    return kafka.producer(transactional_id=transactional_id or kafka.new_name(), **settings)


def commit(producer: Producer, topic: str, records: list[Record]) -> None:
    producer.begin()
    send_all(producer, topic, records)
    producer.commit()


def reader(kafka: Session, topic: str, isolation: str, partitions: int = PARTITIONS) -> Consumer:
    """A consumer of a whole topic."""
    consumer = kafka.consumer(isolation=isolation)
    consumer.assign({Place(topic, index): EARLIEST for index in range(partitions)})
    return consumer


def stands(consumer: Consumer, place: Place) -> int:
    """Its position, once it has polled: markers are passed without a record."""
    assert consumer.poll(0.1) == []
    return consumer.position(place)


def wait_committed(consumer: Consumer, place: Place, offset: int) -> None:
    """A commit is acknowledged before it is everywhere; not every client asks to wait for that."""
    wait_until(lambda: consumer.committed(place) == offset, PATIENCE_S, f"committed: {offset}")


def remove_members(broker: Broker, group: str) -> None:
    """Remove all members, as an administrator does."""
    deadline = time.monotonic() + PATIENCE_S
    with RawClient(coordinator_port(broker, group)) as raw:
        while True:
            (described,) = raw.call(DescribeGroupsRequest([group])).groups
            if described.group_state == "Stable":
                break
            assert time.monotonic() < deadline, "the group is not stable"
            time.sleep(0.05)
        members = [MemberIdentity(member.member_id) for member in described.members]
        assert members
        answer = raw.call(LeaveGroupRequest(group, members=members))
    assert answer.error_code == 0
    assert [member.error_code for member in answer.members] == [0] * len(members)
