"""The claim on a database, in a real store: taken, refused, waited for, given up."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest
import redis

from moldau.broker.process import BootFailure
from moldau.broker.store import keys
from moldau.ops.serve.claim import Claim, Holder
from tests.support.stores.redis_server import RedisServer

LEASE_MS = 600_000  # nothing ends by itself while a test runs


@pytest.fixture
def raw(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        yield client


def claim(server: RedisServer, port: int = 9092) -> Claim:
    return Claim(server.url, port, LEASE_MS)


def gone() -> Holder:
    """A process of this host that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    return Holder(socket.gethostname(), ended.pid, 9092, 1.0, token="gone")


def test_one_takes_it_and_releases_it(server: RedisServer, raw: redis.Redis) -> None:
    first = claim(server)
    first.take()
    assert first.is_ours
    facts = first.facts()
    assert facts["role"] == "holder"
    assert facts["holder"]["pid"] == os.getpid()
    assert 0 < facts["left_s"] <= 540
    first.release()
    assert raw.get(keys.SERVING) is None
    second = claim(server)
    second.take()
    second.release()


def test_a_holder_that_renews_it_is_alive(
    server: RedisServer, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = claim(server, 9092), claim(server, 9192)
    first.take()
    # Instead of waiting for a renewal: it happens between two looks.
    monkeypatch.setattr("moldau.ops.serve.claim.RENEWED_BY_MS", -1)
    with pytest.raises(BootFailure, match=r"port 9092: stop that one.*--standby"):
        second.take()
    assert first.is_ours
    first.release()
    second.release()
    assert raw.hget(keys.LEASE, "token") == b""


def test_a_holder_of_this_host_that_is_gone_is_not_waited_for(
    server: RedisServer, raw: redis.Redis
) -> None:
    holder = gone()
    raw.hset(keys.LEASE, mapping={"token": holder.token, "until": 10**15, "store": "x"})
    raw.set(keys.SERVING, msgspec.json.encode(holder))
    mine = claim(server)
    mine.take()
    assert mine.is_ours
    mine.release()


def test_what_cannot_be_removed_is_not_tried_for_ever(
    server: RedisServer, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The store has forgotten who took it last, as a failover may do.
    raw.hset(keys.LEASE, mapping={"token": "another", "until": 10**15, "store": "x"})
    raw.set(keys.SERVING, msgspec.json.encode(gone()))
    monkeypatch.setattr("moldau.ops.serve.claim.RENEWED_BY_MS", -1)
    with pytest.raises(BootFailure, match="is served already"):
        claim(server).take()


def test_a_key_of_another_program(server: RedisServer, raw: redis.Redis) -> None:
    raw.set(keys.SERVING, b"not ours")
    with pytest.raises(BootFailure, match="is not Moldau's"):
        claim(server).take()


def test_a_store_that_does_not_answer() -> None:
    with pytest.raises(BootFailure, match="cannot be served"):
        Claim("redis://127.0.0.1:1", 9092).take()


async def test_waiting_for_it_and_losing_it(server: RedisServer, raw: redis.Redis) -> None:
    first, second = claim(server, 9092), claim(server, 9192)
    first.take()
    waiting = asyncio.ensure_future(second.until_taken())
    while second.holder is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert second.facts()["role"] == "standby"
    assert second.holder.port == 9092
    assert not waiting.done()
    await asyncio.to_thread(first.release)
    await waiting
    assert second.is_ours
    token = raw.hget(keys.LEASE, "token")
    assert token == second.for_workers.token.encode()
    keeping = asyncio.ensure_future(second.keep(lambda: True))
    raw.hset(keys.LEASE, "token", "another")
    await asyncio.wait_for(keeping, 30)
    second.release()
    assert raw.hget(keys.LEASE, "token") == b"another"  # not ours any more
