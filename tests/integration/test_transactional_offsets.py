"""Offsets of transactions on a real store: pending, ended by markers, and what comes in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator

import pytest
import redis

from moldau.broker.errors import (
    ErrorCode,
    KafkaError,
    SlotNotTaken,
    StoreFenced,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    coordinator_code_for,
)
from moldau.broker.group.offsets import CommittedOffset, TopicPartition, new_commit
from moldau.broker.group.pending_offsets import ANY_NUMBER
from moldau.broker.placement import slot_of
from tests.support.drivers.group_shell import P, Q, Shell, fields, shell, until
from tests.support.stores.proxy import Link, StoreProxy
from tests.support.stores.redis_server import RedisServer


@pytest.fixture
def raw(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        yield client


# 24. Invisible until the commit, gone after the abort


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("restarted", [True, False])
async def test_7_24_pending_until_the_marker(
    server: RedisServer, raw: redis.Redis, commit: bool, restarted: bool
) -> None:
    async with shell(server) as own:
        await own.commit("g", 1)
        await own.txn_commit("g", P, 1, 5, ("t", 0), ("t", 1))
        assert (own.offset("g"), own.offset("g", "t", 1)) == (1, None)
        assert own.pending("g") == {(P, "t", 0): 5, (P, "t", 1): 5}
        assert fields(raw, "g") == {"t:0", f"~{P}:t:0", f"~{P}:t:1"}
        if not restarted:
            await own.end("g", P, 1, commit=commit)
            assert own.pending("g") == {}
    if restarted:
        async with shell(server) as heir:
            assert heir.pending("g") == {(P, "t", 0): 5, (P, "t", 1): 5}
            assert heir.coordinator.groups.offsets["g"].is_pending("t", 1)
            await heir.end("g", P, 1, commit=commit)
            assert heir.offset("g") == (5 if commit else 1)
    async with shell(server) as again:
        assert (again.offset("g"), again.offset("g", "t", 1)) == ((5, 5) if commit else (1, None))
        assert again.pending("g") == {}
        await again.end("g", P, 1, commit=not commit)  # late: nothing is pending any more
        assert again.offset("g") == (5 if commit else 1)
    assert fields(raw, "g") == ({"t:0", "t:1"} if commit else {"t:0"})


async def test_7_24_all_of_an_offset_is_committed(server: RedisServer, raw: redis.Redis) -> None:
    wanted = CommittedOffset(2**63 - 1, 7, "with \0, : and\r\n~", 1_700_000_000_000, None)
    place = TopicPartition("t", 0)
    async with shell(server) as own:
        transactional = own.coordinator.transactional
        with transactional.in_progress("g", P) as commit:
            await transactional.commit(commit, 1, {place: wanted})
        await own.end("g", P, 1, commit=True)
        assert own.coordinator.groups.offsets["g"].get(*place) == wanted
    async with shell(server) as again:
        assert again.coordinator.groups.offsets["g"].get(*place) == wanted


async def test_7_24_a_marker_touches_its_own_number_and_producer(
    server: RedisServer, raw: redis.Redis
) -> None:
    async with shell(server) as own:
        await own.txn_commit("g", P, 2, 5)
        await own.txn_commit("g", Q, 1, 6, ("t", 1))
        for late in (1, 3):
            await own.end("g", P, late, commit=True)
        assert own.offset("g") is None
        assert own.pending("g") == {(P, "t", 0): 5, (Q, "t", 1): 6}
        await own.end("g", P, 2, commit=True)
        assert (own.offset("g"), own.pending("g")) == (5, {(Q, "t", 1): 6})
        await own.end("g", Q, ANY_NUMBER, commit=False)  # an administrator's
        assert own.pending("g") == {}
    assert fields(raw, "g") == {"t:0"}


async def test_7_24_the_store_compares_the_number_too(
    server: RedisServer, raw: redis.Redis
) -> None:
    async with shell(server) as own:
        await own.txn_commit("g", P, 2, 5)
        store, slot = own.coordinator._store, slot_of("g")
        rows: list[tuple[bytes, bytes, list[bytes]]] = [(b"t:0", f"~{P}:t:0".encode(), [])]
        assert await store.end_offsets(slot, "g", 1, rows, commit=True) == [(0, None)]
        assert fields(raw, "g") == {f"~{P}:t:0"}
        ((order, value),) = await store.end_offsets(slot, "g", 2, rows, commit=True)
        assert order > 0
        assert value is not None
        assert fields(raw, "g") == {"t:0"}


async def test_7_24_one_marker_for_all_groups_of_a_slot(
    server: RedisServer, raw: redis.Redis
) -> None:
    names = [name for name in map(str, range(500)) if slot_of(name) == 7][:3]
    other = next(name for name in map(str, range(500)) if slot_of(name) == 8)
    async with shell(server) as own:
        for name in (*names, other):
            await own.txn_commit(name, P, 1, 5)
        await own.end(names[0], P, 1, commit=True)
        assert [own.offset(name) for name in names] == [5, 5, 5]
        assert own.pending(other) == {(P, "t", 0): 5}


async def test_7_24_the_last_of_several_commits_counts(
    server: RedisServer, raw: redis.Redis
) -> None:
    async with shell(server) as own:
        await own.txn_commit("g", P, 1, 5, ("t", 0), ("t", 1))
        await own.txn_commit("g", P, 1, 7, ("t", 1))
        await own.end("g", P, 1, commit=True)
        assert (own.offset("g"), own.offset("g", "t", 1)) == (5, 7)


async def test_7_24_many_partitions(server: RedisServer, raw: redis.Redis) -> None:
    places = [("large", partition) for partition in range(10_000)]
    async with shell(server) as own:
        await own.txn_commit("many", P, 1, 5, *places)
        await own.txn_commit("many", Q, 1, 6, *places)
    async with shell(server) as again:
        await again.end("many", Q, 1, commit=True)
        await again.end("many", P, 1, commit=True)
        assert {again.offset("many", *place) for place in places} == {6}
    assert len(fields(raw, "many")) == 10_000


async def test_7_24_a_full_store_refuses_new_ones_and_lets_markers_in(
    server: RedisServer, raw: redis.Redis
) -> None:
    async with shell(server) as own:
        await own.txn_commit("g", P, 1, 5)
        await own.txn_commit("g", Q, 1, 6, ("t", 1))
        raw.config_set("maxmemory", 1)
        try:
            with pytest.raises(StoreFull):
                await own.txn_commit("g", P, 1, 7)
            with pytest.raises(StoreFull):
                await own.txn_commit("new", P, 1, 7)
            with pytest.raises(StoreFull):
                await own.commit("g", 8)
            assert own.pending("g") == {(P, "t", 0): 5, (Q, "t", 1): 6}
            assert "new" not in own.coordinator.groups.by_id
            await own.end("g", P, 1, commit=True)
            await own.end("g", Q, 1, commit=False)
        finally:
            raw.config_set("maxmemory", 0)
        assert (own.offset("g"), own.pending("g")) == (5, {})
    async with shell(server) as again:
        assert (again.offset("g"), again.pending("g")) == (5, {})


async def test_7_24_a_store_that_loses_its_scripts(server: RedisServer, raw: redis.Redis) -> None:
    async with shell(server) as own:
        await own.commit("g", 1)
        raw.script_flush()
        await own.txn_commit("g", P, 1, 5)
        raw.script_flush()
        # Behind a newer write of the group it is not sent again: the marker would be before it.
        outcomes = await asyncio.gather(
            own.txn_commit("g", P, 1, 6), own.end("g", P, 1, commit=True), return_exceptions=True
        )
        assert isinstance(outcomes[0], StoreRefused)
        assert outcomes[1] is None
        assert (own.offset("g"), own.pending("g")) == (5, {})
    assert fields(raw, "g") == {"t:0"}


# Late TxnOffsetCommits: none outlives its marker


async def test_7_24_a_marker_between_the_yes_and_the_write(
    server: RedisServer, raw: redis.Redis
) -> None:
    """The transaction's coordinator has let it in, and ended the transaction before it is stored:
    nothing is pending yet when the marker comes."""
    offsets = {TopicPartition("t", 0): new_commit(5, 0)}
    async with shell(server) as own:
        transactional = own.coordinator.transactional
        with transactional.in_progress("g", P) as late, transactional.in_progress("g", Q) as other:
            await own.end("g", P, 1, commit=True)
            with pytest.raises(KafkaError) as refusal:
                await transactional.commit(late, 1, offsets)
            assert refusal.value.code == ErrorCode.INVALID_TXN_STATE
            await transactional.commit(other, 1, offsets)
            # Its coordinator was asked after the marker, and has let it into the next one.
            await transactional.commit(late, 2, offsets)
        assert own.pending("g") == {(P, "t", 0): 5, (Q, "t", 0): 5}
        assert not transactional._in_progress
        await own.end("g", P, 2, commit=False)
        await own.end("g", Q, 1, commit=False)
    assert fields(raw, "g") == set()


async def test_7_24_a_marker_while_the_commit_is_on_its_way(
    server: RedisServer, raw: redis.Redis
) -> None:
    async with StoreProxy(server.port) as proxy, shell(server, proxy.url) as own:
        link = await proxy.link("moldau-0-groups")
        link.requests.hold()
        committing = asyncio.ensure_future(own.txn_commit("g", P, 1, 5))
        await asyncio.sleep(0)
        ending = asyncio.ensure_future(own.end("g", P, 1, commit=True))
        await asyncio.sleep(0.02)
        assert not committing.done()
        assert not ending.done()
        link.requests.release()
        await committing
        await ending
        assert (own.offset("g"), own.pending("g")) == (5, {})
    assert fields(raw, "g") == {"t:0"}


async def test_7_24_another_owner_got_the_marker(server: RedisServer, raw: redis.Redis) -> None:
    """The slot was lost and taken back while the transaction's coordinator was asked."""
    offsets = {TopicPartition("t", 0): new_commit(5, 0)}
    async with shell(server) as own:
        transactional = own.coordinator.transactional
        with transactional.in_progress("g", P) as late:
            async with shell(server) as other:
                await other.end("g", P, 1, commit=True)
                with pytest.raises(StoreFenced):
                    await own.commit("g", 1)
            for expected in (ErrorCode.NOT_COORDINATOR, ErrorCode.NONE):
                await until(lambda: own.coordinator.groups.availability("g") == expected)  # noqa: B023
            with pytest.raises(SlotNotTaken):
                await transactional.commit(late, 1, offsets)
    assert fields(raw, "g") == set()


# Unknown outcomes


async def _lost(own: Shell, link: Link, work: Awaitable[None], *, is_run: bool) -> None:
    """The connection is lost under a write that the store has run, or never gets."""
    (link.replies if is_run else link.requests).hold()
    task = asyncio.ensure_future(work)
    await until(lambda: bool(link.replies.waiting if is_run else link.requests.waiting))
    link.cut()
    with pytest.raises(StoreUnavailable):
        await task
    store = own.coordinator._store
    await until(lambda: store.is_up and bool(store._taken))


@pytest.mark.parametrize("is_run", [True, False])
@pytest.mark.parametrize("commit", [True, False])
async def test_7_24_a_marker_whose_outcome_is_unknown(
    server: RedisServer, raw: redis.Redis, is_run: bool, commit: bool
) -> None:
    async with StoreProxy(server.port) as proxy, shell(server, proxy.url) as own:
        await own.commit("g", 1)
        await own.txn_commit("g", P, 1, 5)
        link = await proxy.link("moldau-0-groups")
        await _lost(own, link, own.end("g", P, 1, commit=commit), is_run=is_run)
        assert own.coordinator.groups.offsets["g"].is_pending("t", 0)
        await own.end("g", P, 1, commit=commit)
        assert (own.offset("g"), own.pending("g")) == (5 if commit else 1, {})
    async with shell(server) as again:
        assert (again.offset("g"), again.pending("g")) == (5 if commit else 1, {})


@pytest.mark.parametrize("is_run", [True, False])
async def test_7_26_a_commit_after_a_marker_whose_outcome_is_unknown(
    server: RedisServer, raw: redis.Redis, is_run: bool
) -> None:
    async with StoreProxy(server.port) as proxy, shell(server, proxy.url) as own:
        await own.txn_commit("g", P, 1, 5)
        link = await proxy.link("moldau-0-groups")
        await _lost(own, link, own.end("g", P, 1, commit=True), is_run=is_run)
        await own.commit("g", 9)
        await own.end("g", P, 1, commit=True)
        assert (own.offset("g"), own.pending("g")) == (9, {})
    async with shell(server) as again:
        assert (again.offset("g"), again.pending("g")) == (9, {})
    assert fields(raw, "g") == {"t:0"}


@pytest.mark.parametrize("is_run", [True, False])
async def test_7_24_nothing_is_left_of_a_commit_whose_outcome_is_unknown(
    server: RedisServer, raw: redis.Redis, is_run: bool
) -> None:
    async with StoreProxy(server.port) as proxy, shell(server, proxy.url) as own:
        link = await proxy.link("moldau-0-groups")
        await _lost(own, link, own.txn_commit("g", P, 1, 5), is_run=is_run)
        assert fields(raw, "g") == ({f"~{P}:t:0"} if is_run else set())
        await own.end("g", P, 1, commit=False)
        assert own.pending("g") == {}
        assert fields(raw, "g") == set()


async def test_7_24_markers_of_groups_that_are_not_here(server: RedisServer) -> None:
    async with shell(server) as own:
        coordinator, slot = own.coordinator, slot_of("g")
        coordinator.groups.start_loading(slot)
        with pytest.raises(SlotNotTaken) as loading:
            await own.end("g", P, 1, commit=True)
        assert coordinator_code_for(loading.value) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        coordinator.slots.give_up()
        with pytest.raises(StoreFenced) as away:
            await own.end("g", P, 1, commit=True)
        assert coordinator_code_for(away.value) == ErrorCode.NOT_COORDINATOR


async def test_7_24_a_worker_that_was_replaced_ends_nothing(
    server: RedisServer, raw: redis.Redis
) -> None:
    async with shell(server) as sleeper:
        await sleeper.txn_commit("g", P, 1, 5)
        async with shell(server) as heir:
            with pytest.raises(StoreFenced):
                await sleeper.end("g", P, 1, commit=True)
            assert heir.pending("g") == {(P, "t", 0): 5}
            await heir.end("g", P, 1, commit=False)
    assert fields(raw, "g") == set()


# A store that lost its tail


async def test_7_24_a_store_that_lost_its_tail_gets_all_of_it_again(
    server: RedisServer, raw: redis.Redis
) -> None:
    async with shell(server) as own:
        await own.commit("g", 1, ("t", 0), ("t", 1), ("t", 2))
        await own.txn_commit("g", P, 1, 5, ("t", 1))
        before = {key: raw.dump(key) for key in raw.scan_iter()}
        await own.end("g", P, 1, commit=True)  # is lost
        await own.txn_commit("g", P, 2, 6, ("t", 0), ("t", 2))  # and this
        await own.commit("g", 7, ("t", 2))
        known = own.pending("g")
        assert known == {(P, "t", 0): 6, (P, "t", 2): None}
        raw.flushall()
        for key, value in before.items():
            assert value is not None
            raw.restore(key, 0, value)

        reacquiring = asyncio.ensure_future(own.coordinator.slots.store_changed())
        await asyncio.sleep(0)
        for refused in (own.end("g", P, 2, commit=True), own.txn_commit("g", P, 2, 9)):
            with pytest.raises(SlotNotTaken):
                await refused
        await reacquiring
        assert own.pending("g") == known
    async with shell(server) as again:
        assert again.pending("g") == known
        assert [again.offset("g", "t", number) for number in range(3)] == [1, 5, 7]
        await again.end("g", P, 2, commit=True)
        assert [again.offset("g", "t", number) for number in range(3)] == [6, 5, 7]
