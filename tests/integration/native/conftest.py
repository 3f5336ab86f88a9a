"""What the tests of groups on native topics share: a broker, a topic, a group."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.support.brokers.native import QUICK, Native
from tests.support.brokers.running import Broker, running_broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker(workers=2, broker=QUICK) as started:
        yield started


@pytest.fixture
def topic(broker: Broker) -> Iterator[Native]:
    made = Native(broker)
    yield made
    made.close()


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"
