"""The client of the load test against a broker: what it reads back, and the violations it finds."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from moldau.loadtest.bench.harness.client import Client
from moldau.loadtest.users.client import stamped_transactions
from moldau.loadtest.users.client.committed import CommittedCheck
from moldau.loadtest.users.client.connection import RequestRefused
from moldau.loadtest.users.client.group_member import Member
from moldau.loadtest.users.client.session import Session, records_of
from moldau.loadtest.users.client.stamped import PartitionCheck
from moldau.loadtest.users.client.stamped_producer import ProducerSettings, StampedProducer
from moldau.loadtest.users.client.stamped_transactions import READ_COMMITTED, StampedTransactions
from tests.support.brokers.running import Broker
from tests.support.compat.grouping import quick_broker

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def moldau() -> Iterator[Broker]:
    yield from quick_broker()


@pytest.fixture
def reported() -> list[str]:
    """The APIs that were reported, with what went wrong."""
    return []


@pytest.fixture
def session(moldau: Broker, reported: list[str]) -> Iterator[Session]:
    def report(api: str, seconds: float, size: int, error: Exception | None) -> None:
        reported.append(api if error is None else f"{api}: {error}")

    made = Session(("127.0.0.1", moldau.port), "load", report)
    yield made
    made.close()


@pytest.fixture
def topic(session: Session) -> str:
    name = f"load-{secrets.token_hex(4)}"
    session.create_topic(name, 2, {})
    session.create_topic(name, 2, {})  # accepts one that exists
    assert session.partitions(name) == [0, 1]
    return name


def produce(session: Session, topic: str, batches: int) -> StampedProducer:
    producer = StampedProducer(session, ProducerSettings(topic, 100, 300))
    for _ in range(batches):
        assert producer.produce(0, time.perf_counter()) == []
    return producer


def delete_until(broker: Broker, topic: str, offset: int) -> None:
    places = [DeleteRecordsTopic(topic, [DeleteRecordsPartition(0, offset)])]
    with Client(("127.0.0.1", broker.port)) as client:
        answer = client.call(DeleteRecordsRequest(places, 30_000), 2)
    assert answer.topics[0].partitions[0].error_code == 0


def test_what_is_produced_is_read(session: Session, topic: str, reported: list[str]) -> None:
    producer = produce(session, topic, 4)
    assert producer.acknowledged[0].offset == 11
    assert producer.read_back() == []
    check = PartitionCheck(f"{topic}-0", 0)
    answer = session.fetch(topic, 0, 0, max_bytes=MEGABYTE)
    assert check.feed(records_of(answer)) == []
    assert (check.position, check.records) == (12, 12)
    assert {"Metadata", "InitProducerId", "Produce", "Fetch", "ApiVersions"} <= set(reported)
    assert not [line for line in reported if ":" in line]


def test_what_was_acknowledged_and_is_gone_is_reported(
    moldau: Broker, session: Session, topic: str
) -> None:
    producer = produce(session, topic, 2)
    last = producer.acknowledged[0]
    producer.acknowledged[0] = last._replace(number=last.number + 1)
    (violation,) = producer.read_back()
    assert violation.startswith(f"lost: {topic}-0 offset 5 was acknowledged")
    producer.acknowledged[0] = last._replace(offset=100)
    assert producer.read_back() == [f"lost: {topic}-0 ends at 6, and had offsets up to 101"]
    producer.acknowledged[0] = last
    delete_until(moldau, topic, 6)
    assert producer.read_back() == []  # removed on purpose


def test_an_offset_assigned_twice_is_reported(session: Session, topic: str) -> None:
    producer = produce(session, topic, 1)
    producer.acknowledged[0] = producer.acknowledged[0]._replace(offset=50)
    (violation,) = producer.produce(0, time.perf_counter())
    assert violation == f"lost: {topic}-0 offset 3 was assigned again, after 50"


def test_a_log_may_begin_later_and_not_end_earlier(
    moldau: Broker, session: Session, topic: str
) -> None:
    produce(session, topic, 2)
    delete_until(moldau, topic, 3)
    for offset in (0, 7):
        answer = session.fetch(topic, 0, offset, max_bytes=MEGABYTE)
        assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert session.out_of_range(topic, 0, 0) == (3, [])
    assert session.out_of_range(topic, 0, 7) == (
        6,
        [f"lost: {topic}-0 ends at 6, and had offsets up to 7"],
    )


def test_a_member_reads_commits_and_misses_a_lost_commit(session: Session, topic: str) -> None:
    produce(session, topic, 2)
    member = Member(session, f"group-{topic}", topic, [0, 1], 10_000)
    assert member.enter() == []
    assert sorted(member.checks) == [0, 1]
    assert member.fetch(0, MEGABYTE, time.perf_counter()) == []
    assert member.checks[0].position == 6
    member.commit()
    assert member.heartbeat()
    member.leave()

    again = Member(session, member.group, topic, [0, 1], 10_000)
    assert again.enter() == []
    assert again.checks[0].position == 6  # the committed offset
    again.checks[0].position = 3  # as if the coordinator had lost it
    again._to_commit.add(0)
    again.commit()
    again.leave()
    third = Member(session, member.group, topic, [0, 1], 10_000)
    (violation,) = third.enter()
    assert violation == (
        f"lost: group {member.group} {topic}-0: 6 was committed, and OffsetFetch returns 3"
    )
    third.leave()


def test_transactions_are_committed_aborted_and_read_back(
    session: Session, topic: str, reported: list[str]
) -> None:
    producer = StampedTransactions(session, ProducerSettings(topic, 100, 300), f"id-{topic}")
    for commit in (True, False, True, False):
        assert producer.transact([0, 1], time.perf_counter(), commit=commit) == []
    assert {one.offset for one in producer.committed.values()} == {10}  # 3 records and a marker
    assert producer.read_back() == []
    check = CommittedCheck(f"{topic}-0", 0)
    answer = session.fetch(topic, 0, 0, max_bytes=MEGABYTE, isolation_level=READ_COMMITTED)
    assert answer.aborted_transactions
    assert check.feed(records_of(answer), answer.aborted_transactions) == []
    assert (check.position, check.records) == (16, 6)
    assert not [line for line in reported if ":" in line]

    last = producer.committed[1]
    producer.committed = {1: last._replace(number=last.number + 1)}
    (violation,) = producer.read_back()
    assert violation.startswith(f"lost: {topic}-1 offset 10 was committed, and holds Stamp")


def test_a_transactional_producer_that_was_fenced_goes_on_under_a_new_name(
    session: Session, topic: str
) -> None:
    settings = ProducerSettings(topic, 100, 300)
    producer = StampedTransactions(session, settings, f"id-{topic}")
    assert producer.transact([0], time.perf_counter(), commit=True) == []
    StampedTransactions(session, settings, f"id-{topic}").init()
    with pytest.raises(RequestRefused, match=r"PRODUCER_FENCED|INVALID_PRODUCER_EPOCH"):
        producer.transact([0], time.perf_counter(), commit=True)
    assert producer.transact([0], time.perf_counter(), commit=True) == []
    assert producer.read_back() == []
    check = CommittedCheck(f"{topic}-0", 0)
    answer = session.fetch(topic, 0, 0, max_bytes=MEGABYTE, isolation_level=READ_COMMITTED)
    assert check.feed(records_of(answer), answer.aborted_transactions or ()) == []
    assert check.records == 6


def test_what_is_never_stable_is_reported(
    session: Session, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stamped_transactions, "STABLE_S", 0.2)
    settings = ProducerSettings(topic, 100, 300)
    hanging = StampedTransactions(session, settings, f"hanging-{topic}")
    monkeypatch.setattr(hanging, "_end", lambda *, commit: None)
    assert hanging.transact([0], time.perf_counter(), commit=False) == []
    producer = StampedTransactions(session, settings, f"id-{topic}")
    assert producer.transact([0], time.perf_counter(), commit=True) == []
    assert producer.read_back() == [
        f"hanging: {topic}-0 is stable up to 0 only, and offset 5 is committed"
    ]
    hanging.init()
    assert producer.read_back() == []
