"""Offsets of transactions on a real store: beside later commits, and deleted with their group."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis

from moldau.broker.errors import (
    ErrorCode,
    StoreFull,
)
from moldau.broker.group.offsets import TopicPartition
from moldau.broker.placement import slot_of
from moldau.broker.store import keys
from tests.support.drivers.group_shell import P, Q, fields, shell
from tests.support.stores.redis_server import RedisServer


@pytest.fixture
def raw(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        yield client


@pytest.mark.parametrize("restarted", [True, False])
async def test_7_26_a_later_commit_stays(
    server: RedisServer, raw: redis.Redis, restarted: bool
) -> None:
    async with shell(server) as own:
        await own.txn_commit("g", P, 1, 5, ("t", 0), ("t", 1), ("t", 2))
        await own.commit("g", 3, ("t", 1), ("t", 2))
        await own.txn_commit("g", P, 1, 6, ("t", 2))  # later still
        assert own.pending("g") == {(P, "t", 0): 5, (P, "t", 1): None, (P, "t", 2): 6}
        if not restarted:
            await own.end("g", P, 1, commit=True)
    async with shell(server) as again:
        if restarted:
            assert again.coordinator.groups.offsets["g"].is_pending("t", 1)
            await again.end("g", P, 1, commit=True)
        assert [again.offset("g", "t", number) for number in range(3)] == [5, 3, 6]
        assert again.pending("g") == {}


async def test_7_26_a_commit_that_was_refused_overtakes_nothing(
    server: RedisServer, raw: redis.Redis
) -> None:
    async with shell(server) as own:
        await own.txn_commit("g", P, 1, 5)
        raw.config_set("maxmemory", 1)
        try:
            outcomes = await asyncio.gather(
                own.commit("g", 3), own.end("g", P, 1, commit=True), return_exceptions=True
            )
        finally:
            raw.config_set("maxmemory", 0)
        assert isinstance(outcomes[0], StoreFull)
        assert outcomes[1] is None
        assert own.offset("g") == 5
    async with shell(server) as again:
        assert again.offset("g") == 5


async def test_7_26_of_two_transactions_the_offset_sent_later_stays(
    server: RedisServer, raw: redis.Redis
) -> None:
    async with shell(server) as own:
        await own.txn_commit("g", P, 1, 5)
        await own.txn_commit("g", Q, 1, 6)
        await own.end("g", Q, 1, commit=True)
        assert own.pending("g") == {(P, "t", 0): None}
        await own.end("g", P, 1, commit=True)
        assert own.offset("g") == 6
        await own.txn_commit("g", P, 2, 7)
        await own.txn_commit("g", Q, 2, 8)
    async with shell(server) as again:  # the order is stored
        await again.txn_commit("g", P, 2, 9)
        await again.end("g", P, 2, commit=True)
        await again.end("g", Q, 2, commit=True)
        assert again.offset("g") == 9


async def test_7_26_pending_offsets_keep_a_group(server: RedisServer, raw: redis.Redis) -> None:
    async with shell(server) as own:
        await own.txn_commit("kept", P, 1, 5)
        await own.quiet()
        await own.coordinator.offsets.expire()
        assert "kept" in own.coordinator.groups.by_id
        await own.end("kept", P, 1, commit=False)
        await own.coordinator.offsets.expire()
        assert "kept" not in own.coordinator.groups.by_id
    assert not raw.smembers(keys.groups(slot_of("kept")).decode())


async def test_7_26_delete_groups_removes_pending_offsets(
    server: RedisServer, raw: redis.Redis
) -> None:
    async with shell(server) as own:
        await own.txn_commit("gone", P, 1, 5)
        await own.quiet()
        assert await own.coordinator.delete("gone") == ErrorCode.NONE
        await own.end("gone", P, 1, commit=True)
        assert "gone" not in own.coordinator.groups.by_id
        assert own.coordinator.groups.pending.groups_of(slot_of("gone"), P) == []
    assert fields(raw, "gone") == set()


async def test_7_26_a_group_deleted_while_its_marker_is_on_the_way(
    server: RedisServer, raw: redis.Redis
) -> None:
    for first in ("marker", "deletion"):
        async with shell(server) as own:
            await own.txn_commit("gone", P, 1, 5)
            await own.quiet()
            works = [own.end("gone", P, 1, commit=True), own.coordinator.delete("gone")]
            await asyncio.gather(*(works if first == "marker" else reversed(works)))
            assert "gone" not in own.coordinator.groups.by_id
        assert fields(raw, "gone") == set()


async def test_7_26_offset_delete_and_the_end_of_a_topic(
    server: RedisServer, raw: redis.Redis
) -> None:
    async with shell(server) as own:
        await own.commit("g", 1, ("t", 0), ("t", 1))
        for producer_id in (P, Q):
            await own.txn_commit("g", producer_id, 1, 5, ("t", 0), ("t", 1), ("u", 0), ("v", 0))
        await own.coordinator.offsets.drop("g", [TopicPartition("t", 0)])
        assert own.coordinator.offsets.topics() == {"t", "u", "v"}
        await own.coordinator.offsets.topic_deleted("u")
        assert {place[1:] for place in own.pending("g")} == {("t", 1), ("v", 0)}
        await own.end("g", P, 1, commit=True)
        await own.end("g", Q, 1, commit=False)
    assert fields(raw, "g") == {"t:1", "v:0"}
    async with shell(server) as again:
        assert [again.offset("g", *place) for place in (("t", 0), ("t", 1), ("v", 0))] == [
            None,
            5,
            5,
        ]
        assert again.pending("g") == {}
