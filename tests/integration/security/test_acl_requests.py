"""APIs 29 to 31: Kafka's validation, filters, and requests that no client would send."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from moldau.broker.security.acl import Acl
from moldau.broker.wire.messages.create_acls import AclCreation, CreateAclsRequest
from moldau.broker.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from moldau.broker.wire.messages.describe_acls import DescribeAclsRequest
from tests.support.brokers.running import Broker, running_broker
from tests.support.raw.client import RawClient
from tests.support.raw.identified import IdentifiedClient

INVALID_REQUEST, SECURITY_DISABLED = 42, 54
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
EVERYTHING = (ANY, None, ANY, None, None, ANY, ANY)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker(workers=2, broker={"authorizer.class.name": "standard"}) as started:
        yield started


@pytest.fixture
def operator(broker: Broker) -> Iterator[IdentifiedClient]:
    with IdentifiedClient(broker) as client:
        yield client
        client.call(DeleteAclsRequest([DeleteAclsFilter(*EVERYTHING)]))


def described(client: IdentifiedClient, *wanted: Any) -> list[tuple[Any, ...]]:
    answer = client.call(DescribeAclsRequest(*(wanted or EVERYTHING)))
    assert (answer.error_code, answer.error_message) == (0, None)
    return [
        (
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for resource in answer.resources
        for acl in resource.acls
    ]


def creation(**changed: Any) -> AclCreation:
    fields = {
        "resource_type": 2,
        "resource_name": "orders",
        "resource_pattern_type": LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return AclCreation(**{**fields, **changed})


def test_each_acl_is_checked_alone(operator: IdentifiedClient) -> None:
    wrong: list[dict[str, Any]] = [
        {"resource_type": 0},
        {"resource_type": ANY},
        {"resource_type": 99},
        {"resource_name": ""},
        {"resource_type": 4, "resource_name": "other"},
        {"resource_pattern_type": MATCH},
        {"operation": ANY},
        {"permission_type": ANY},
        {"principal": "alice"},
    ]
    creations = [creation(**fields) for fields in wrong]
    creations.insert(4, creation())
    creations.append(creation(resource_type=4, resource_name="kafka-cluster"))
    results = operator.call(CreateAclsRequest(creations)).results
    expected = [INVALID_REQUEST] * 4 + [0] + [INVALID_REQUEST] * 5 + [0]
    assert [result.error_code for result in results] == expected
    assert all(result.error_message for result in results if result.error_code)
    assert len(described(operator)) == 2


def test_an_acl_is_made_once_and_says_by_whom(broker: Broker, operator: IdentifiedClient) -> None:
    results = operator.call(CreateAclsRequest([creation(), creation()])).results
    assert [result.error_code for result in results] == [0, 0]
    with redis.from_url(broker.store_url) as store:
        before = store.hgetall("moldau:acls")
        assert list(before) == [b"ALLOW User:alice READ TOPIC LITERAL orders *"]
        assert b"User:local" in before[b"ALLOW User:alice READ TOPIC LITERAL orders *"]
        assert operator.call(CreateAclsRequest([creation()])).results[0].error_code == 0
        assert store.hgetall("moldau:acls") == before


def test_filters_delete_what_they_find(operator: IdentifiedClient) -> None:
    operator.call(
        CreateAclsRequest(
            [
                creation(),
                creation(resource_name="ord", resource_pattern_type=PREFIXED),
                creation(resource_name="*"),
                creation(resource_name="other"),
            ]
        )
    )
    assert {acl[1] for acl in described(operator, 2, "orders", MATCH, None, None, ANY, ANY)} == {
        "orders",
        "ord",
        "*",
    }
    wanted = [
        DeleteAclsFilter(2, "orders", MATCH, None, None, ANY, ANY),
        DeleteAclsFilter(2, "orders", LITERAL, None, None, ANY, ANY),  # found by both
        DeleteAclsFilter(0, None, ANY, None, None, ANY, ANY),
        DeleteAclsFilter(2, "missing", ANY, None, None, ANY, ANY),
    ]
    results = operator.call(DeleteAclsRequest(wanted)).filter_results
    assert [result.error_code for result in results] == [0, 0, INVALID_REQUEST, 0]
    assert [len(result.matching_acls) for result in results] == [3, 1, 0, 0]
    assert [acl[1] for acl in described(operator)] == ["other"]


def test_a_filter_of_something_unknown_is_refused(operator: IdentifiedClient) -> None:
    answer = operator.call(DescribeAclsRequest(0, None, ANY, None, None, ANY, ANY))
    assert answer.error_code == INVALID_REQUEST


def test_any_request_is_answered(broker: Broker, operator: IdentifiedClient) -> None:
    """Numbers that mean nothing, names of any characters; what is made can be found and deleted."""
    chance = random.Random(7)
    letters = "aZ0-_. %*:/\n\0\u00e9\u4e16\U0001f409'\"\\"

    def text() -> str:
        return "".join(chance.choices(letters, k=chance.randrange(12)))

    def number(most: int) -> int:
        return chance.randrange(-3, most + 3) if chance.random() < 0.2 else chance.randint(2, most)

    made: set[tuple[Any, ...]] = set()
    for _ in range(30):
        creations = [
            creation(
                resource_type=number(7),
                resource_name=chance.choice([text(), "kafka-cluster"]),
                resource_pattern_type=number(4),
                principal=chance.choice([text(), f"User:{text()}"]),
                host=text(),
                operation=number(15),
                permission_type=number(3),
            )
            for _ in range(20)
        ]
        results = operator.call(CreateAclsRequest(creations)).results
        for item, result in zip(creations, results, strict=True):
            assert result.error_code in (0, INVALID_REQUEST)
            if not result.error_code:
                made.add(tuple(getattr(item, field) for field in item.__struct_fields__))
    assert len(made) > 100
    assert set(described(operator)) == made
    with IdentifiedClient(broker, worker=1) as other:
        assert set(described(other)) == made
    with redis.from_url(broker.store_url) as store:
        assert all(Acl.parse(field.decode()) for field in store.hkeys("moldau:acls"))
    filters = [DeleteAclsFilter(*acl) for acl in made]
    results = operator.call(DeleteAclsRequest(filters)).filter_results
    assert all(result.matching_acls for result in results if not result.error_code)
    assert described(operator) == []


def test_without_an_authorizer_they_are_refused(moldau: Broker) -> None:
    with RawClient(moldau.port) as client:
        answer = client.call(DescribeAclsRequest(*EVERYTHING))
        assert answer.error_code == SECURITY_DISABLED
        (created,) = client.call(CreateAclsRequest([creation()])).results
        assert created.error_code == SECURITY_DISABLED
        (deleted,) = client.call(DeleteAclsRequest([DeleteAclsFilter(*EVERYTHING)])).filter_results
        assert deleted.error_code == SECURITY_DISABLED
