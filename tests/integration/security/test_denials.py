"""Every API denied, then allowed with the ACLs it needs and no other: the denial table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moldau.broker.security.acl import Acl
from moldau.broker.security.identity import Identity
from moldau.broker.security.resources import CLUSTER_NAME, PatternType, Permission
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from moldau.broker.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.broker.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.support.brokers.running import Broker, running_broker, wait_until
from tests.support.raw.denials import CASES, FREE, Case, Names, Need, found
from tests.support.raw.identified import IdentifiedClient


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    # One worker coordinates every group and leads every partition.
    settings = {
        "authorizer.class.name": "standard",
        "super.users": "User:admin;User:root",
        "delegation.token.secret.key": "a secret",
    }
    with running_broker(workers=1, broker=settings) as started:
        yield started


@pytest.fixture(scope="module")
def operator(broker: Broker) -> Iterator[IdentifiedClient]:
    with IdentifiedClient(broker) as client:
        yield client


def test_every_api_is_in_the_table() -> None:
    assert {case.api for case in CASES} | FREE == set(APIS)
    ids = [case.id for case in CASES]
    assert len(set(ids)) == len(ids)


def prepare(operator: IdentifiedClient, case: Case) -> Names:
    """A topic, a group with an offset and a transactional id of the case's own."""
    topic = f"t-{case.id.lower()}"
    (created,) = operator.call(CreateTopicsRequest([CreatableTopic(topic, 2, 1)])).topics
    assert created.error_code == 0, created
    names = Names(topic, created.topic_id, f"g-{case.id}", f"x-{case.id}", f"new-{topic}")
    committed = OffsetCommitRequestTopic(topic, partitions=[OffsetCommitRequestPartition(0, 3)])

    def is_ready() -> bool:
        commit = operator.call(OffsetCommitRequest(names.group, topics=[committed]), 8)
        init = operator.call(InitProducerIdRequest(names.txn, 60_000))
        return not (commit.topics[0].partitions[0].error_code or init.error_code)

    wait_until(is_ready, 30, "group and transactional id exist")
    if case.api is ApiKey.DESCRIBE_DELEGATION_TOKEN:
        made = operator.call(CreateDelegationTokenRequest("User", topic, [], -1))
        assert made.error_code == 0, made
        names = names._replace(token=made.token_id)
    return names


def acl(principal: str, need: Need, names: Names) -> Acl:
    name = need.name if need.name == CLUSTER_NAME else getattr(names, need.name)
    return Acl(
        need.resource, name, PatternType.LITERAL, principal, "*", need.operation, Permission.ALLOW
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_an_api_is_denied_then_allowed(
    broker: Broker, operator: IdentifiedClient, case: Case
) -> None:
    names = prepare(operator, case)
    principal = f"User:{case.id}"
    with IdentifiedClient(broker, Identity(principal, "10.1.2.3")) as client:
        denied = client.call(case.request(names), case.version)
        if case.denied is None:
            assert not case.is_allowed(denied, names)
        else:
            codes = found(denied, case.places)
            assert codes, denied
            assert set(codes) == {case.denied}, denied
        for left_out in case.needs if len(case.needs) > 1 else ():
            some = [acl(principal, need, names) for need in case.needs if need != left_out]
            assert not any(operator.create(some))
            answer = client.call(case.request(names), case.version)
            assert not case.is_allowed(answer, names), f"without {left_out}: {answer}"
            assert operator.delete_of(principal) == len(some)
        assert not any(operator.create(acl(principal, need, names) for need in case.needs))
        answer = client.call(case.request(names), case.version)
        assert case.is_allowed(answer, names), answer
    operator.delete_of(principal)


@pytest.mark.parametrize("principal", ["User:admin", "User:root"])
def test_super_users_need_nothing(
    broker: Broker, operator: IdentifiedClient, principal: str
) -> None:
    case = next(case for case in CASES if case.id == "CREATE_ACLS-v3")
    with IdentifiedClient(broker, Identity(principal, "10.1.2.3")) as client:
        names = Names("", b"", "", "", "any")
        assert case.is_allowed(client.call(case.request(names), case.version), names)
