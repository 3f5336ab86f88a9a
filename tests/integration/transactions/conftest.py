"""What the tests of transactions on the wire share: a broker of two workers, producers, topics."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.support.brokers.running import Broker, running_broker
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient
from tests.support.raw.transactions import (
    V1,
    V2,
    ClientVersion,
    RawProducer,
    await_loaded,
)

MAX_TIMEOUT_MS = 120_000

Producers = Callable[..., RawProducer]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "transaction.max.timeout.ms": MAX_TIMEOUT_MS,
        "group.initial.rebalance.delay.ms": 50,
        "num.partitions": 4,
    }
    with running_broker(workers=2, broker=settings) as started:
        with RawClient(started.port) as client:
            await_loaded(client)
        yield started


@pytest.fixture
def router(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.port) as client:
        yield client


@pytest.fixture
def topic(router: RawClient) -> str:
    """A topic of four partitions: each worker leads two."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    create_topic(router, name, partitions=4)
    return name


@pytest.fixture
def new_id() -> str:
    """A transactional id without a producer yet."""
    return f"id-{uuid.uuid4().hex[:12]}"


@pytest.fixture(params=[V1, V2], ids=lambda client: client.name)
def client_version(request: pytest.FixtureRequest) -> ClientVersion:
    chosen: ClientVersion = request.param
    return chosen


@pytest.fixture(params=[False, True], ids=["routed", "direct"])
def direct(request: pytest.FixtureRequest) -> bool:
    """Whether requests go to the workers' own ports, rather than through the router."""
    return bool(request.param)


@pytest.fixture
def producers(broker: Broker, new_id: str) -> Iterator[Producers]:
    """Make producers: `producers(V1)`; all have `new_id` unless another id is given."""
    with contextlib.ExitStack() as stack:

        def make(
            client: ClientVersion = V2, transactional_id: str = new_id, *, direct: bool = False
        ) -> RawProducer:
            return stack.enter_context(RawProducer(broker, transactional_id, client, direct=direct))

        yield make
