"""What modules share that have a `broker` of their own: connections to its workers and store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.support.brokers.running import Broker
from tests.support.raw.calls import worker_clients
from tests.support.raw.client import RawClient


@pytest.fixture
def clients(broker: Broker) -> Iterator[list[RawClient]]:
    """A connection to each worker, in their order."""
    with worker_clients(broker) as made:
        yield made


@pytest.fixture
def store(broker: Broker) -> Iterator[redis.Redis]:
    with redis.from_url(broker.store_url) as client:
        yield client
