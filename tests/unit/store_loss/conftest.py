"""What tests of store loss and logs against a real store share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.support.stores.redis_server import RedisServer


@pytest.fixture
def store(server: RedisServer) -> Iterator[Any]:
    with redis.from_url(server.url) as client:
        yield client
