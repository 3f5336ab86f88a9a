"""The lease of a database, in a real store. Its time passes by moving what the store remembers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from moldau.broker.errors import StoreFull
from moldau.broker.store import keys
from moldau.broker.store.blocking import BlockingStore
from moldau.broker.store.connector import Connector
from moldau.broker.store.lease import (
    AGAIN,
    ASK,
    KEEP,
    TAKE,
    Claimant,
    Verdict,
    refuses_writes,
    renew,
)
from moldau.broker.store.pipe import Pipe
from tests.support.stores.redis_server import RedisServer, running_redis

LEASE_MS = 600_000  # nothing ends by itself while a test runs
YOURS, ANOTHERS, WAIT, LOST = Verdict.YOURS, Verdict.ANOTHERS, Verdict.WAIT, Verdict.LOST


def claimant(token: str) -> Claimant:
    return Claimant(token, b'{"host":"%b","token":"%b"}' % ((token.encode(),) * 2), LEASE_MS)


A, B, C = claimant("a"), claimant("b"), claimant("c")


class Leased:
    """A store, and what passes there."""

    def __init__(self, store: BlockingStore, raw: redis.Redis) -> None:
        self._store, self.raw = store, raw

    def ask(self, who: Claimant, mode: str, *, known: bool = False) -> Verdict:
        return self._store.lease(who, mode, known=known).verdict

    def pass_time(self) -> None:
        """A little more than a lease's time passes, without anybody who asks."""
        for field in (b"until", b"waiting_at", b"waiting_since"):
            value = self.raw.hget(keys.LEASE, field)
            if value and int(value):
                self.raw.hset(keys.LEASE, field, int(value) - LEASE_MS - 1)
        self.raw.delete(keys.SERVING)

    def wait_long(self, who: Claimant) -> None:
        """Somebody has asked all the time."""
        assert self.ask(who, TAKE) is ANOTHERS
        since = self.raw.hget(keys.LEASE, b"waiting_since")
        assert since is not None
        self.raw.hset(keys.LEASE, b"waiting_since", int(since) - LEASE_MS)

    def end(self) -> None:
        """The holder did not renew it for a lease's time."""
        self.raw.hset(keys.LEASE, b"until", 1)
        self.raw.delete(keys.SERVING)

    def change_store(self) -> None:
        """What a failover looks like."""
        self.raw.hset(keys.LEASE, b"store", "another")


@pytest.fixture
def leased(server: RedisServer) -> Iterator[Leased]:
    with redis.Redis.from_url(server.url) as raw, BlockingStore(server.url) as store:
        raw.flushall()
        yield Leased(store, raw)


def test_one_has_it_and_keeps_it(leased: Leased) -> None:
    assert leased.ask(A, TAKE) is YOURS
    assert leased.ask(B, TAKE) is ANOTHERS
    assert leased.ask(A, KEEP) is YOURS
    assert leased.ask(A, AGAIN) is YOURS
    assert leased.ask(B, KEEP) is LOST
    assert leased.raw.get(keys.SERVING) == A.holder
    assert 0 < leased.raw.pttl(keys.SERVING) <= LEASE_MS


def test_others_are_told_who_has_it_and_until_when(leased: Leased, server: RedisServer) -> None:
    leased.ask(A, TAKE)
    with BlockingStore(server.url) as store:
        first = store.lease(B, TAKE)
        leased.ask(A, KEEP)
        assert first.holder == A.holder
        assert store.lease(B, TAKE).ends_ms >= first.ends_ms


def test_one_that_is_released_is_taken_at_once(leased: Leased, server: RedisServer) -> None:
    leased.ask(A, TAKE)
    with BlockingStore(server.url) as store:
        store.give_back_lease(B)  # not B's
        assert leased.ask(B, TAKE) is ANOTHERS
        store.give_back_lease(A)
    assert leased.raw.get(keys.SERVING) is None
    assert leased.ask(B, TAKE) is YOURS


def test_a_late_renewal_does_not_bring_a_released_one_back(
    leased: Leased, server: RedisServer
) -> None:
    leased.ask(A, TAKE)
    with BlockingStore(server.url) as store:
        store.give_back_lease(A)
    assert leased.ask(A, KEEP) is LOST
    assert leased.ask(A, AGAIN) is LOST


def test_one_that_ended_goes_to_whoever_waited_for_it(leased: Leased) -> None:
    leased.ask(A, TAKE)
    leased.wait_long(B)
    assert leased.ask(B, TAKE) is ANOTHERS  # it has not ended
    leased.end()
    assert leased.ask(B, TAKE) is YOURS
    assert leased.ask(A, KEEP) is LOST
    assert leased.ask(A, AGAIN) is LOST


def test_whoever_comes_after_its_end_waits_for_the_time_of_a_lease(leased: Leased) -> None:
    # In a store that refuses writes the holder goes on as long as nobody waits: it has to see that
    # somebody does.
    leased.ask(A, TAKE)
    leased.end()
    assert leased.ask(B, TAKE) is ANOTHERS
    assert leased.ask(A, AGAIN) is YOURS  # nobody had it meanwhile


def test_one_who_stopped_waiting_waits_anew(leased: Leased) -> None:
    leased.ask(A, TAKE)
    leased.wait_long(B)
    leased.pass_time()
    assert leased.ask(B, TAKE) is ANOTHERS


def test_after_a_failover_its_holder_keeps_it_and_others_wait(leased: Leased) -> None:
    leased.ask(A, TAKE)
    leased.wait_long(B)
    leased.end()  # as the new master remembers it
    leased.change_store()
    assert leased.ask(B, TAKE) is ANOTHERS
    assert leased.ask(A, AGAIN) is WAIT  # by its own clock it is over: B may have had it
    assert leased.ask(A, KEEP) is YOURS
    assert leased.ask(B, TAKE) is ANOTHERS


def test_a_failover_that_lost_who_has_it_leaves_it_to_the_holder(leased: Leased) -> None:
    leased.ask(A, TAKE)
    leased.change_store()  # B took it from A, which the new master does not know
    assert leased.ask(B, KEEP) is YOURS
    assert leased.ask(A, KEEP) is LOST


def test_after_a_failover_a_dead_holder_is_waited_for(leased: Leased) -> None:
    leased.ask(A, TAKE)
    leased.wait_long(B)
    leased.end()
    leased.change_store()
    assert leased.ask(B, TAKE) is ANOTHERS
    leased.end()
    assert leased.ask(B, TAKE) is YOURS


def test_a_restarted_store_does_not_hold_up_a_host_without_standby(leased: Leased) -> None:
    leased.ask(A, TAKE)
    leased.end()
    leased.change_store()
    assert leased.ask(A, AGAIN) is YOURS


def test_who_waited_once_does_not_hold_up_a_host_that_has_no_standby_now(leased: Leased) -> None:
    leased.ask(A, TAKE)
    assert leased.ask(B, TAKE) is ANOTHERS
    for field in (b"waiting_at", b"waiting_since"):  # long before the last renewal
        leased.raw.hincrby(keys.LEASE, field, -10 * LEASE_MS)
    leased.pass_time()
    leased.change_store()
    assert leased.ask(A, AGAIN) is YOURS


def test_who_begins_to_wait_at_the_new_master_is_waited_for(leased: Leased) -> None:
    leased.ask(A, TAKE)
    leased.change_store()
    assert leased.ask(B, TAKE) is ANOTHERS
    assert leased.ask(A, AGAIN) is WAIT


def test_an_emptied_store_is_left_to_its_holder(leased: Leased) -> None:
    leased.ask(A, TAKE)
    assert leased.ask(B, TAKE) is ANOTHERS
    leased.raw.flushall()
    assert leased.ask(B, TAKE, known=True) is ANOTHERS  # B has seen that there was a lease
    assert leased.ask(A, KEEP) is YOURS
    leased.raw.flushall()
    assert leased.ask(A, AGAIN) is YOURS


def test_a_version_without_leases_is_waited_for(leased: Leased) -> None:
    leased.raw.set(keys.SERVING, b'{"host":"old","pid":7,"port":9092,"since":1}', px=LEASE_MS)
    assert leased.ask(A, TAKE) is ANOTHERS
    leased.raw.delete(keys.SERVING)
    assert leased.ask(A, TAKE) is YOURS


def test_who_only_asks_changes_nothing(leased: Leased) -> None:
    assert leased.ask(A, ASK) is YOURS  # nobody has it
    assert not leased.raw.exists(keys.LEASE)
    leased.ask(A, TAKE)
    before = leased.raw.hgetall(keys.LEASE)
    assert leased.ask(A, ASK) is YOURS
    assert leased.ask(B, ASK) is LOST
    assert leased.raw.hgetall(keys.LEASE) == before
    leased.change_store()
    assert leased.ask(B, ASK) is WAIT


def test_two_that_ask_at_the_same_moment_do_not_both_get_it(leased: Leased) -> None:
    leased.ask(A, TAKE)
    leased.wait_long(B)
    leased.end()
    assert sorted((leased.ask(B, TAKE), leased.ask(C, TAKE))) == [YOURS, ANOTHERS]


async def test_in_a_store_that_refuses_writes_the_holder_goes_on_until_somebody_waits(
    tmp_path: Path,
) -> None:
    with running_redis(tmp_path) as server, redis.Redis.from_url(server.url) as raw:
        pipe = Pipe(Connector(server.url), "test")
        await pipe.connect()
        try:
            with BlockingStore(server.url) as store:
                assert store.lease(A, TAKE).verdict is YOURS
            raw.config_set("min-replicas-to-write", 1)
            assert await renew(pipe, A, is_over=False) is YOURS
            assert await renew(pipe, A, is_over=True) is YOURS
            assert await renew(pipe, B, is_over=False) is WAIT
            raw.config_set("min-replicas-to-write", 0)
            with BlockingStore(server.url) as store:
                assert store.lease(B, TAKE).verdict is ANOTHERS
            raw.config_set("min-replicas-to-write", 1)
            assert await renew(pipe, A, is_over=False) is WAIT
            raw.config_set("min-replicas-to-write", 0)
            # B is out of sight, with a new master perhaps, for as long as nobody can write here.
            Leased(BlockingStore(server.url), raw).pass_time()
            raw.config_set("min-replicas-to-write", 1)
            assert await renew(pipe, A, is_over=False) is WAIT
        finally:
            pipe.close()


async def test_a_renewal_that_a_slow_store_answers_late_counts(server: RedisServer) -> None:
    pipe = Pipe(Connector(server.url), "test")
    await pipe.connect()
    try:
        with redis.Redis.from_url(server.url) as raw:
            raw.flushall()
            raw.execute_command("CLIENT", "PAUSE", 3_000, "ALL")
        assert await renew(pipe, A, is_over=True) is YOURS
    finally:
        pipe.close()


def test_a_full_store_takes_renewals(tmp_path: Path) -> None:
    with running_redis(tmp_path) as server, BlockingStore(server.url) as store:
        assert store.lease(A, TAKE).verdict is YOURS
        with redis.Redis.from_url(server.url) as raw:
            raw.config_set("maxmemory-policy", "noeviction")
            raw.config_set("maxmemory", 1)
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                raw.set("more", "x")
        assert store.lease(A, KEEP).verdict is YOURS
        store.give_back_lease(A)


def test_a_full_store_is_a_fault_that_refuses_writes() -> None:
    assert refuses_writes(StoreFull("MISCONF Redis is configured to save RDB snapshots"))
