"""Groups of confluent-kafka consumers work unmodified."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.brokers.running import Broker
from tests.support.clients.confluent import Confluent
from tests.support.clients.members import ConfluentMember, Member
from tests.support.compat.grouping import CooperativeReadingTests, GroupTests, quick_broker


@pytest.fixture(scope="module")
def moldau() -> Iterator[Broker]:
    yield from quick_broker()


@pytest.fixture(scope="module")
def client() -> Confluent:
    return Confluent()


@pytest.fixture
def member_class() -> type[Member]:
    return ConfluentMember


@pytest.fixture(params=ConfluentMember.strategies)
def strategy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestGroups(GroupTests, CooperativeReadingTests):
    pass
