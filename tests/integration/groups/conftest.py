"""What the tests of groups on the wire share: a broker, a group, a member of it, a topic."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from broker.wire.messages.list_groups import ListGroupsRequest
from tests.support.raw_calls import create_topic
from tests.support.raw_client import RawClient
from tests.support.raw_group import (
    RawMember,
    coordinator_port,
)
from tests.support.running import Broker, remove_dir, short_temp_dir, wait_until


@pytest.fixture(scope="package")
def moldau() -> Iterator[Broker]:
    """Two workers that do not wait long for more members."""
    directory = short_temp_dir()
    broker = Broker.start(directory, broker={"group.initial.rebalance.delay.ms": 50})
    with RawClient(broker.port) as client:
        # While a worker loads its groups, heartbeats are answered with 0.
        wait_until(
            lambda: client.call(ListGroupsRequest()).error_code == 0, 30, "groups are loaded"
        )
    yield broker
    code = broker.stop()
    log = broker.log()
    remove_dir(directory)
    assert code == 0, log
    assert "Traceback" not in log, log


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
