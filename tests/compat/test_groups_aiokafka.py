"""Groups of aiokafka consumers work unmodified."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.brokers.running import Broker
from tests.support.clients.aiokafka import Aiokafka
from tests.support.clients.members import AiokafkaMember, Member
from tests.support.compat.grouping import GroupTests, quick_broker


@pytest.fixture(scope="module")
def moldau() -> Iterator[Broker]:
    yield from quick_broker()


@pytest.fixture(scope="module")
def client() -> Iterator[Aiokafka]:
    client = Aiokafka()
    yield client
    client.close()


@pytest.fixture
def member_class() -> type[Member]:
    return AiokafkaMember


@pytest.fixture(params=AiokafkaMember.strategies)
def strategy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestGroups(GroupTests):
    pass
