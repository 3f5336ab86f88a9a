"""ACLs: what each field may be, their text, and the filters that find them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.security.acl import Acl, AclFilter, canonical_host, from_wire
from moldau.broker.security.resources import Operation, PatternType, Permission, ResourceType

READ_ORDERS = Acl(
    ResourceType.TOPIC,
    "orders-",
    PatternType.PREFIXED,
    "User:alice",
    "*",
    Operation.READ,
    Permission.ALLOW,
)


def changed(acl: Acl, **fields: Any) -> Acl:
    return Acl(**{name: fields.get(name, getattr(acl, name)) for name in acl.__struct_fields__})


def test_the_text_of_an_acl_can_be_read() -> None:
    assert READ_ORDERS.text == "ALLOW User:alice READ TOPIC PREFIXED orders- *"
    spaced = changed(READ_ORDERS, principal="User:CN=A B,O=100%", name="a b", host="::1")
    assert spaced.text == "ALLOW User:CN=A%20B,O=100%25 READ TOPIC PREFIXED a%20b ::1"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
acls = st.builds(
    Acl,
    st.sampled_from(ResourceType),
    texts,
    st.sampled_from(PatternType),
    texts,
    texts,
    st.sampled_from(Operation),
    st.sampled_from(Permission),
)


@given(acls, acls)
def test_the_text_is_the_identity_of_an_acl(one: Acl, other: Acl) -> None:
    assert Acl.parse(one.text) == one
    assert (one.text == other.text) == (one == other)


@given(texts)
def test_any_text_is_an_acl_or_a_value_error(text: str) -> None:
    for line in (text, f"ALLOW {text} READ TOPIC LITERAL x *", f"{text} {READ_ORDERS.text}"):
        try:
            parsed = Acl.parse(line)
        except ValueError:
            continue
        assert Acl.parse(parsed.text) == parsed


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"resource": ResourceType.ANY}, "ResourceType ANY"),
        ({"resource": ResourceType.UNKNOWN}, "ResourceType UNKNOWN"),
        ({"pattern": PatternType.MATCH}, "PatternType MATCH"),
        ({"pattern": PatternType.ANY}, "PatternType ANY"),
        ({"operation": Operation.ANY}, "Operation ANY"),
        ({"operation": Operation.UNKNOWN}, "Operation UNKNOWN"),
        ({"permission": Permission.ANY}, "Permission ANY"),
        ({"name": ""}, "empty resource name"),
        ({"resource": ResourceType.CLUSTER, "name": "other"}, "kafka-cluster"),
        ({"principal": "alice"}, "no colon"),
        ({"principal": "User:"}, "no colon"),
    ],
)
def test_what_kafka_would_not_create_is_refused(fields: dict[str, Any], why: str) -> None:
    READ_ORDERS.check()
    with pytest.raises(KafkaError, match=why) as refusal:
        changed(READ_ORDERS, **fields).check()
    assert refusal.value.code is ErrorCode.INVALID_REQUEST


EU = changed(READ_ORDERS, name="orders-eu", pattern=PatternType.LITERAL)
EVERY_TOPIC = changed(READ_ORDERS, name="*", pattern=PatternType.LITERAL)
OTHER = changed(EU, name="other", principal="User:bob", host="10.0.0.1")
DENIED = changed(EU, permission=Permission.DENY, operation=Operation.WRITE)
GROUP = changed(EU, resource=ResourceType.GROUP)
ALL = [READ_ORDERS, EU, EVERY_TOPIC, OTHER, DENIED, GROUP]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (AclFilter(), ALL),
        (AclFilter(resource=ResourceType.GROUP), [GROUP]),
        (AclFilter(principal="User:bob"), [OTHER]),
        (AclFilter(host="10.0.0.1"), [OTHER]),
        (AclFilter(operation=Operation.WRITE), [DENIED]),
        (AclFilter(permission=Permission.DENY), [DENIED]),
        (AclFilter(pattern=PatternType.PREFIXED), [READ_ORDERS]),
        (AclFilter(name="orders-eu"), [EU, DENIED, GROUP]),
        (AclFilter(name="orders-eu", pattern=PatternType.PREFIXED), []),
        (AclFilter(name="orders-", pattern=PatternType.LITERAL), []),
        (
            AclFilter(ResourceType.TOPIC, "orders-eu", PatternType.MATCH),
            [READ_ORDERS, EU, EVERY_TOPIC, DENIED],
        ),
        (AclFilter(name="*", pattern=PatternType.MATCH), [EVERY_TOPIC]),
        (AclFilter(pattern=PatternType.MATCH), ALL),
    ],
)
def test_filters_find_what_kafkas_find(wanted: AclFilter, found: list[Acl]) -> None:
    wanted.check()
    assert [acl for acl in ALL if wanted.matches(acl)] == found


def test_a_filter_of_something_unknown_is_refused() -> None:
    for wanted in (AclFilter(ResourceType.UNKNOWN), AclFilter(operation=Operation.UNKNOWN)):
        with pytest.raises(KafkaError, match="Unknown"):
            wanted.check()


def test_numbers_that_kafka_has_not_are_unknown() -> None:
    assert from_wire(Operation, 3) is Operation.READ
    assert from_wire(Operation, 99) is Operation.UNKNOWN
    assert from_wire(PatternType, -1) is PatternType.UNKNOWN


@pytest.mark.parametrize(
    ("host", "canonical"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8::A", "2001:db8::a"),
        ("*", "*"),
        ("unix", "unix"),
        ("?", "?"),
    ],
)
def test_an_address_has_one_form(host: str, canonical: str) -> None:
    assert canonical_host(host) == canonical
