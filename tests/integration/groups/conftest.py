"""What the tests of groups on the wire share: a broker, a group, a member of it, a topic."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from moldau.broker.wire.messages.list_groups import ListGroupsRequest
from tests.support.brokers.running import Broker, running_broker, wait_until
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient
from tests.support.raw.group import (
    RawMember,
    coordinator_port,
)


@pytest.fixture(scope="module")
def moldau() -> Iterator[Broker]:
    """Two workers that do not wait long for more members."""
    with running_broker(broker={"group.initial.rebalance.delay.ms": 50}) as broker:
        with RawClient(broker.port) as client:
            # While a worker loads its groups, heartbeats are answered with 0.
            wait_until(
                lambda: client.call(ListGroupsRequest()).error_code == 0, 30, "groups are loaded"
            )
        yield broker


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def member(moldau: Broker, group: str) -> Iterator[RawMember]:
    with RawMember(coordinator_port(moldau, group), group) as member:
        yield member


@pytest.fixture
def topic(member: RawMember) -> str:
    name = f"topic-{uuid.uuid4().hex[:12]}"
    create_topic(member, name, partitions=3)
    return name
