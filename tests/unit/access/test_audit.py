"""Audit events: who and from where, bounded, never in the way."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from moldau.broker.access import audit as module
from moldau.broker.access.audit import Audit, is_audited
from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.log.writing import event_topic
from moldau.broker.log.writing.event_topic import EventTopic
from moldau.broker.security.identity import Identity
from moldau.broker.security.resources import Operation, ResourceType
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.wire.records import Record

ALICE = Identity("User:alice", "10.0.0.1", "SASL_SSL")
NOTHING: Any = None


class Written(EventTopic):
    """Keeps what is appended; `fault` makes it fail."""

    def __init__(self) -> None:
        super().__init__("audit", NOTHING, NOTHING, 3, {})
        self.fault: KafkaError | None = None
        self.events: list[dict[str, Any]] = []

    async def append(self, records: list[Record]) -> None:
        if self.fault is not None:
            raise self.fault
        self.events += [msgspec.json.decode(record.value or b"") for record in records]


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "now_ms", made)
    return made


def deny(audit: Audit, name: str, identity: Identity = ALICE) -> None:
    audit.denied(identity, Operation.WRITE, ResourceType.TOPIC, name, "Produce")


async def test_events_say_who_what_and_from_where(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    topic = Written()
    audit = Audit(topic, 3)
    with caplog.at_level(logging.INFO, "moldau.audit"):
        audit.login(ALICE, "SCRAM-SHA-512")
        audit.login_failed("10.0.0.2", "PLAIN", "bob" * 1000, "wrong password")
        deny(audit, "orders")
        audit.changed(ALICE, "topic", "created", "orders", partitions=3)
    await audit.flush()
    who = {"principal": "User:alice", "host": "10.0.0.1", "listener": "SASL_SSL"}
    common = {"time_ms": clock.now, "worker": 3}
    assert topic.events == [
        {"event": "login", **common, **who, "mechanism": "SCRAM-SHA-512"},
        {
            "event": "login_failed",
            **common,
            "host": "10.0.0.2",
            "mechanism": "PLAIN",
            "user": ("bob" * 1000)[:500],
            "reason": "wrong password",
        },
        {
            "event": "denied",
            **common,
            **who,
            "operation": "WRITE",
            "resource": "TOPIC",
            "name": "orders",
            "request": "Produce",
        },
        {
            "event": "changed",
            **common,
            **who,
            "what": "topic",
            "action": "created",
            "name": "orders",
            "partitions": 3,
        },
    ]
    assert [msgspec.json.decode(record.message) for record in caplog.records] == topic.events


async def test_denials_are_told_once_a_minute_then_counted(clock: Clock) -> None:
    topic = Written()
    audit = Audit(topic, 3)
    for _ in range(100):
        deny(audit, "orders")
        clock.now += 500
    await audit.flush()
    assert [event["event"] for event in topic.events] == ["denied"]
    clock.now += 11_000
    await audit.flush()
    (repeated,) = topic.events[1:]
    assert (repeated["event"], repeated["count"]) == ("denied_repeated", 99)
    assert (repeated["principal"], repeated["name"]) == ("User:alice", "orders")


async def test_failures_are_counted_by_address_and_second(clock: Clock) -> None:
    topic = Written()
    audit = Audit(topic, 3)
    for number in range(50):
        audit.login_failed("10.0.0.2", "PLAIN", f"user{number}", "wrong password")
    audit.login_failed("10.0.0.3", "PLAIN", "x", "wrong password")
    clock.now += 1000
    await audit.flush()
    told = [(event["event"], event["host"], event.get("count")) for event in topic.events]
    assert told == [
        ("login_failed", "10.0.0.2", None),
        ("login_failed", "10.0.0.3", None),
        ("login_failed_repeated", "10.0.0.2", 49),
    ]


async def test_one_client_cannot_flood_the_log(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    audit = Audit(Written(), 3)
    with caplog.at_level(logging.INFO, "moldau.audit"):
        for number in range(20_000):
            deny(audit, f"topic-{number}")
        deny(audit, "orders", Identity("User:bob", "10.0.0.2"))
        assert len(caplog.records) == 101
        clock.now += 60_000
        await audit.flush()
    assert '"count":19900' in caplog.records[-1].message


async def test_what_the_store_cannot_take_is_dropped_and_counted(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_topic, "MAX_QUEUED", 5)
    topic = Written()
    topic.fault = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "away")
    audit = Audit(topic, 3)
    for number in range(8):
        audit.changed(ALICE, "topic", "created", f"t{number}")
    await audit.flush()
    assert topic.events == []
    topic.fault = None
    await audit.flush()
    names = [event.get("name", event["event"]) for event in topic.events]
    assert names == ["t0", "t1", "t2", "t3", "t4", "events_dropped"]


async def test_without_a_topic_nothing_is_audited(caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit()
    with caplog.at_level(logging.INFO):
        audit.login(ALICE, "PLAIN")
        audit.login_failed("10.0.0.1", "PLAIN", "x", "y")
        deny(audit, "orders")
        audit.changed(ALICE, "topic", "created", "orders")
        await audit.flush()
        await audit.close(1.0)
    assert not caplog.records
    assert not audit.is_enabled


@pytest.mark.parametrize(
    ("configs", "uses_sasl", "expected"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"authorizer.class.name": "standard"}, False, True),
        ({"authorizer.class.name": "standard", "moldau.audit.enable": "false"}, True, False),
        ({"moldau.audit.enable": "true"}, False, True),
    ],
)
def test_it_is_on_where_there_is_something_to_audit(
    configs: dict[str, str], uses_sasl: bool, expected: bool
) -> None:
    assert is_audited(BrokerConfig(configs), uses_sasl=uses_sasl) is expected
