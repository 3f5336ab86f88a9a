"""Every supported server that is installed, and a client of it with an empty database."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.support.stores.redis_server import RedisServer, running_redis
from tests.unit.store.native.native_store import SERVERS


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer]:
    program = SERVERS[request.param]
    with running_redis(tmp_path_factory.mktemp("store"), program=program) as started:
        yield started


@pytest.fixture
def client(server: RedisServer) -> Iterator[Any]:
    with redis.from_url(server.url) as connected:
        connected.flushall()
        yield connected
