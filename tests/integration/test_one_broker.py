"""One broker per Redis database; a broker that was killed does not keep the next one out."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as redis_py

from tests.support.brokers.running import Broker, free_ports, run_moldau, wait_until
from tests.support.stores.redis_server import RedisServer, running_redis

Start = Callable[..., Broker]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RedisServer]:
    with running_redis(tmp_path) as started:
        yield started


def test_a_second_broker_on_a_database_is_refused(store: RedisServer, start_moldau: Start) -> None:
    first = start_moldau(workers=1, redis=store.url)
    port = str(free_ports(3))
    refused = run_moldau("serve", "--redis", store.url, "--port", port, "--workers", "1")
    assert refused.returncode == 3, refused.stderr
    assert f"port {first.port}" in refused.stderr
    assert "is served already" in refused.stderr
    assert first.stop() == 0
    with redis_py.from_url(store.url) as client:
        assert client.get("moldau:serving") is None
    start_moldau(workers=1, redis=store.url)


def test_a_broker_that_was_killed_does_not_keep_the_next_one_out(
    store: RedisServer, start_moldau: Start
) -> None:
    first = start_moldau(workers=1, redis=store.url)
    first.kill("supervisor")
    first.process.wait()  # or it would be a zombie, which is a process
    wait_until(lambda: not first.leftovers(), 30, "its processes are gone")
    with redis_py.from_url(store.url) as client:
        assert client.get("moldau:serving") is not None
    start_moldau(workers=1, redis=store.url)
