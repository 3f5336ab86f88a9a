"""What may be asked of quotas, and what may be set."""

from __future__ import annotations

import math

import pytest

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.security.quota_entities import DEFAULT, Entity
from moldau.broker.security.quota_requests import (
    Filter,
    Match,
    altered,
    checked_changes,
    checked_entity,
    matching,
)

ENTITIES = [
    Entity("alice", "app"),
    Entity("alice", DEFAULT),
    Entity("alice"),
    Entity(DEFAULT),
    Entity(None, "app"),
    Entity(ip="10.0.0.1"),
    Entity(ip=DEFAULT),
]

Component = tuple[str, int, str | None]


def found(*components: Component, strict: bool = False) -> set[Entity]:
    quotas = {entity: {"producer_byte_rate": 1.0} for entity in ENTITIES}
    return {entity for entity, _ in matching(quotas, Filter(components, strict=strict))}


@pytest.mark.parametrize(
    ("components", "strict", "expected"),
    [
        ([], False, set(ENTITIES)),
        ([], True, set()),
        ([("user", Match.EXACT, "alice")], False, set(ENTITIES[:3])),
        ([("user", Match.EXACT, "alice")], True, {Entity("alice")}),
        ([("user", Match.DEFAULT, None)], False, {Entity(DEFAULT)}),
        ([("user", Match.ANY, None)], True, {Entity("alice"), Entity(DEFAULT)}),
        ([("user", Match.ANY, None)], False, set(ENTITIES[:4])),
        (
            [("user", Match.EXACT, "alice"), ("client-id", Match.ANY, None)],
            True,
            set(ENTITIES[:2]),
        ),
        (
            [("client-id", Match.DEFAULT, None), ("user", Match.ANY, None)],
            False,
            {Entity("alice", DEFAULT)},
        ),
        ([("ip", Match.ANY, None)], False, set(ENTITIES[5:])),
        ([("ip", Match.EXACT, "10.0.0.2")], False, set()),
    ],
)
def test_filters(components: list[Component], strict: bool, expected: set[Entity]) -> None:
    assert found(*components, strict=strict) == expected


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", Match.ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("user", Match.ANY, None), ("user", Match.DEFAULT, None)], ErrorCode.INVALID_REQUEST),
        ([("group", Match.ANY, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("user", Match.EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", Match.DEFAULT, "alice")], ErrorCode.INVALID_REQUEST),
        ([("user", Match.ANY, "alice")], ErrorCode.INVALID_REQUEST),
        ([("ip", Match.ANY, None), ("user", Match.ANY, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_filters_that_are_refused(components: list[Component], code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        Filter(components, strict=False)
    assert refused.value.code == code


def test_entities() -> None:
    assert checked_entity([("user", None), ("client-id", "app")]) == Entity(DEFAULT, "app")
    assert checked_entity([("ip", "::0001")]) == Entity(ip="::1")


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [("group", "a")],
        [("user", "")],
        [("user", "a"), ("user", "b")],
        [("user", "a"), ("ip", "10.0.0.1")],
        [("client-id", None), ("ip", None)],
        [("ip", "not an address")],
    ],
)
def test_entities_that_are_refused(parts: list[tuple[str, str | None]]) -> None:
    with pytest.raises(KafkaError) as refused:
        checked_entity(parts)
    assert refused.value.code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        (Entity("a"), "connection_creation_rate", 5),
        (Entity(ip="::1"), "producer_byte_rate", 5),
        (Entity("a"), "unknown", 5),
        (Entity("a"), "producer_byte_rate", 0),
        (Entity("a"), "producer_byte_rate", -1),
        (Entity("a"), "producer_byte_rate", 1.5),
        (Entity("a"), "producer_byte_rate", 1e19),
        (Entity("a"), "request_percentage", math.nan),
        (Entity("a"), "request_percentage", math.inf),
        (Entity(ip="::1"), "connection_creation_rate", 1 << 31),
        (Entity(ip="::1"), "connection_creation_rate", 0.5),
    ],
)
def test_values_that_are_refused(entity: Entity, key: str, value: float) -> None:
    with pytest.raises(KafkaError) as refused:
        checked_changes(entity, [(key, value, False)])
    assert refused.value.code == ErrorCode.INVALID_REQUEST


def test_values() -> None:
    operations = [
        ("producer_byte_rate", 1024.0, False),
        ("request_percentage", 0.5, False),
        ("consumer_byte_rate", -3.0, True),  # the value of a removal is not looked at
    ]
    changes = checked_changes(Entity("a", "b"), operations)
    values = {"consumer_byte_rate": 9.0, "controller_mutation_rate": 1.0}
    assert altered(values, changes) == {
        "producer_byte_rate": 1024,
        "request_percentage": 0.5,
        "controller_mutation_rate": 1,
    }


def test_a_key_twice_is_refused() -> None:
    with pytest.raises(KafkaError):
        checked_changes(Entity("a"), [("producer_byte_rate", 1, False)] * 2)
