"""Groups of kafka-python consumers work unmodified."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.brokers.running import Broker
from tests.support.clients.kafka_python import KafkaPython
from tests.support.clients.members import KafkaPythonMember, Member
from tests.support.compat.grouping import CooperativeTests, GroupTests, quick_broker


@pytest.fixture(scope="module")
def moldau() -> Iterator[Broker]:
    yield from quick_broker()


@pytest.fixture(scope="module")
def client() -> KafkaPython:
    return KafkaPython()


@pytest.fixture
def member_class() -> type[Member]:
    return KafkaPythonMember


@pytest.fixture(params=KafkaPythonMember.strategies)
def strategy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestGroups(GroupTests, CooperativeTests):
    pass
