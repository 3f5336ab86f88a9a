"""What the tests of Fetch share: a broker of three workers, a connection to each, a topic."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.brokers.running import Broker, running_broker
from tests.support.proofs.hammer import worker_ports
from tests.support.raw.client import RawClient
from tests.support.raw.fetching import WORKERS, Where


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker(workers=WORKERS) as started:
        yield started


@pytest.fixture(scope="module")
def workers(broker: Broker) -> Iterator[list[RawClient]]:
    clients = [RawClient(port, timeout=90) for port in worker_ports(broker)]
    yield clients
    for client in clients:
        client.close()


@pytest.fixture
def where(workers: list[RawClient]) -> Where:
    return Where(workers)
