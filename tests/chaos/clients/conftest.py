"""What the tests of bad clients share: a broker with little memory to give, and its victim."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.clients.victim import Victim
from tests.support.brokers.running import Broker, running_broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker(workers=2, inflight_bytes="64mb", tail_cache_bytes="4mb") as started:
        yield started


@pytest.fixture
def victim(broker: Broker) -> Iterator[Victim]:
    chosen = Victim(broker)
    yield chosen
    chosen.must_be_well()
