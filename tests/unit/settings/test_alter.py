"""The laws of incremental alterations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.settings.kafka import (
    BROKER_KEYS,
    BrokerConfig,
    InvalidConfig,
    InvalidConfigRequest,
    apply_incremental,
)
from moldau.broker.settings.kafka.alter import ConfigOperation

SET, DELETE = ConfigOperation.SET, ConfigOperation.DELETE
APPEND, SUBTRACT = ConfigOperation.APPEND, ConfigOperation.SUBTRACT

LIST = "leader.replication.throttled.replicas"
elements = st.from_regex(r"[0-9]{1,2}:[0-9]{1,2}", fullmatch=True)
lists = st.lists(elements, unique=True, max_size=6)


def altered(before: list[str], operation: int, parts: list[str]) -> list[str]:
    after = apply_incremental({LIST: ",".join(before)}, [(LIST, operation, ",".join(parts))])
    return [part for part in after[LIST].split(",") if part]


def test_set_and_delete() -> None:
    current = {"retention.ms": "1", "cleanup.policy": "compact"}
    after = apply_incremental(
        current, [("retention.ms", DELETE, None), ("max.message.bytes", SET, "5")]
    )
    assert after == {"cleanup.policy": "compact", "max.message.bytes": "5"}
    assert current == {"retention.ms": "1", "cleanup.policy": "compact"}
    assert apply_incremental({"retention.ms": "1"}, [("retention.ms", SET, "2")]) == {
        "retention.ms": "2"
    }
    # What is not set may be deleted, even a key that no longer exists.
    assert apply_incremental({}, [("retention.ms", DELETE, None), ("gone", DELETE, "x")]) == {}


def test_appending_to_what_is_not_set_starts_from_the_value_in_force() -> None:
    append = [("cleanup.policy", APPEND, "compact")]
    assert apply_incremental({}, append) == {"cleanup.policy": "delete,compact"}
    broker = BrokerConfig({"log.cleanup.policy": "compact"})
    assert apply_incremental({}, append, broker=broker) == {"cleanup.policy": "compact"}
    assert apply_incremental({"cleanup.policy": ""}, append) == {"cleanup.policy": "compact"}
    subtract = [("cleanup.policy", SUBTRACT, "delete")]
    assert apply_incremental({}, subtract) == {"cleanup.policy": ""}


def test_broker_keys_are_altered_alike() -> None:
    operations = [("log.cleanup.policy", APPEND, "compact"), ("log.retention.ms", SET, "5")]
    after = apply_incremental({}, operations, keys=BROKER_KEYS, broker=BrokerConfig())
    assert after == {"log.cleanup.policy": "delete,compact", "log.retention.ms": "5"}
    broker = BrokerConfig({"log.cleanup.policy": "compact"})
    after = apply_incremental(
        {}, [("log.cleanup.policy", APPEND, "delete")], keys=BROKER_KEYS, broker=broker
    )
    assert after == {"log.cleanup.policy": "compact,delete"}


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
@pytest.mark.parametrize("name", ["retention.ms", "compression.type", "no.such.key"])
def test_only_lists_are_appended_to(operation: ConfigOperation, name: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"{operation.name} to key {name}: .* not LIST"):
        apply_incremental({}, [(name, operation, "1")])


@pytest.mark.parametrize(
    ("operations", "reason"),
    [
        ([("retention.ms", SET, None)], r"Null value not supported for: retention\.ms"),
        ([("cleanup.policy", APPEND, None)], r"Null value not supported for: cleanup\.policy"),
        ([("retention.ms", 4, "1")], r"Unknown operation 4 on retention\.ms"),
        ([("retention.ms", -1, "1")], r"Unknown operation -1 on retention\.ms"),
        ([("a", DELETE, None), ("a", SET, "1")], r"a is altered twice in one request"),
    ],
)
def test_requests_that_make_no_sense(
    operations: list[tuple[str, int, str | None]], reason: str
) -> None:
    with pytest.raises(InvalidConfigRequest, match=reason):
        apply_incremental({}, operations)


@given(lists, lists)
def test_append_adds_what_is_missing_in_order_and_moves_nothing(
    before: list[str], parts: list[str]
) -> None:
    after = altered(before, APPEND, parts)
    assert after[: len(before)] == before
    assert after[len(before) :] == [part for part in parts if part not in before]


@given(lists, lists)
def test_subtract_removes_exactly_what_is_named(before: list[str], parts: list[str]) -> None:
    assert altered(before, SUBTRACT, parts) == [part for part in before if part not in parts]


@given(lists, lists, st.sampled_from([APPEND, SUBTRACT]))
def test_once_is_as_good_as_twice(
    before: list[str], parts: list[str], operation: ConfigOperation
) -> None:
    once = altered(before, operation, parts)
    assert altered(once, operation, parts) == once


@given(lists, lists)
def test_subtract_undoes_the_append_of_something_new(before: list[str], parts: list[str]) -> None:
    new = [part for part in parts if part not in before]
    assert altered(altered(before, APPEND, new), SUBTRACT, new) == before


@given(lists, lists, lists)
def test_two_appends_are_one(before: list[str], first: list[str], second: list[str]) -> None:
    one = altered(before, APPEND, [*first, *second])
    assert altered(altered(before, APPEND, first), APPEND, second) == one


@given(lists, st.sampled_from([APPEND, SUBTRACT]))
def test_nothing_changes_nothing(before: list[str], operation: ConfigOperation) -> None:
    assert altered(before, operation, []) == before
