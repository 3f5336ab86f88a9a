"""The tokens of workers on a real store: what they hold, when sessions end, who wins a race."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

import pytest
import redis

from moldau.broker.access import tokens as module
from moldau.broker.access.tokens import Tokens
from moldau.broker.errors import ErrorCode, KafkaError, StoreFull, StoreUnavailable
from moldau.broker.security.identity import Identity
from moldau.broker.security.sasl import Mechanism
from moldau.broker.security.tokens import Token, expired, renewed
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.store import keys
from moldau.broker.store.connector import Connector
from moldau.broker.store.pipe import Pipe
from moldau.broker.store.store_id import StoreIdentity
from moldau.broker.store.tokens import TokenStore, read_token
from moldau.broker.store.topics import TopicStore
from tests.support.stores.redis_server import RedisServer

SHA_256 = Mechanism.SCRAM_SHA_256
ALICE = Identity("User:alice")
DAY = 86_400_000


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "now_ms", made)
    return made


@pytest.fixture
def stored(server: RedisServer) -> redis.Redis:
    client: redis.Redis = redis.from_url(server.url)
    client.delete(keys.TOKENS)
    return client


class Opened(Tokens):
    """The token store of one worker, with what it said of sessions."""

    ended: list[set[str]]
    removed: list[str]


@asynccontextmanager
async def opened(server: RedisServer, **configs: str) -> AsyncIterator[Opened]:
    pipe = Pipe(Connector(server.url), "test", identity=StoreIdentity(None))
    await pipe.connect()
    config = BrokerConfig({"delegation.token.secret.key": "secret", **_dotted(configs)})
    made = Opened(TokenStore(pipe), TopicStore(pipe), config)
    made.ended, made.removed = [], []

    def note(ids: Collection[str]) -> None:
        made.ended.append(set(ids))

    made.on_ended.append(note)
    made.on_removed = lambda token_id, _: made.removed.append(token_id)
    try:
        await made.load()
        yield made
    finally:
        made.close()
        pipe.close()


def _dotted(configs: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in configs.items()}


async def create(tokens: Tokens, max_lifetime_ms: int = -1, owner: str = "User:alice") -> str:
    token_id, _ = await tokens.create(owner, owner, (), max_lifetime_ms)
    return token_id


def renewing(tokens: Tokens, period_ms: int = -1) -> Callable[[Token, int], Token]:
    return lambda token, now: renewed(token, ALICE, tokens.lifetimes, period_ms, now)


def expiring(period_ms: int = -1) -> Callable[[Token, int], Token | None]:
    return lambda token, now: expired(token, ALICE, period_ms, now)


def may_log_in(tokens: Tokens, token_id: str) -> bool:
    return tokens.find(SHA_256, token_id).owner == "alice" and tokens.is_current(token_id, "alice")


async def test_what_one_worker_changes_another_reads(
    server: RedisServer, stored: redis.Redis, clock: Clock
) -> None:
    async with opened(server) as one, opened(server) as other:
        token_id = await create(one)
        assert may_log_in(one, token_id)
        assert not may_log_in(other, token_id)
        await other.refresh(token_id)
        assert may_log_in(other, token_id)
        assert other.id_of(one.hmac(token_id)) == token_id
        clock.now += 1000
        await one.alter(token_id, renewing(one, 5000))
        await other.refresh(token_id)
        assert other.all[token_id].expires_at == clock.now + 5000
        await other.alter(token_id, expiring())
        assert other.ended == [{token_id}]
        assert may_log_in(one, token_id)
        await one.refresh(token_id)
        assert one.ended == [{token_id}]
        assert not one.all
        with pytest.raises(KafkaError) as refusal:
            one.id_of(one.hmac(token_id))
        assert refusal.value.code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


async def test_the_store_has_nothing_to_log_in_with(
    server: RedisServer, stored: redis.Redis, clock: Clock
) -> None:
    async with opened(server) as tokens:
        token_id = await create(tokens)
        made = tokens.hmac(token_id)
        value = stored.hget(keys.TOKENS, token_id)
        assert isinstance(value, bytes)
        assert made not in value
        assert read_token(value).owner == "User:alice"


async def test_sessions_end_when_a_token_expires_and_only_then(
    server: RedisServer, stored: redis.Redis, clock: Clock
) -> None:
    async with opened(server) as tokens:
        begun = clock.now
        short, long = await create(tokens, 5000), await create(tokens)
        tokens.end_expired(clock.now)
        clock.now = begun + 4999
        tokens.end_expired(clock.now)
        assert tokens.ended == []
        assert may_log_in(tokens, short)
        clock.now = begun + 5000
        tokens.end_expired(clock.now)
        tokens.end_expired(clock.now + 1)
        assert tokens.ended == [{short}]
        assert not may_log_in(tokens, short)
        assert may_log_in(tokens, long)
        # An end that is moved forward counts from then on, whatever sessions were told.
        await tokens.alter(long, expiring(2000))
        clock.now += 2000
        tokens.end_expired(clock.now)
        assert tokens.ended == [{short}, {long}]


async def test_a_renewed_token_goes_on(
    server: RedisServer, stored: redis.Redis, clock: Clock
) -> None:
    async with opened(server, delegation_token_expiry_time_ms="5000") as tokens:
        token_id = await create(tokens)
        for _ in range(5):
            clock.now += 4000
            tokens.end_expired(clock.now)
            await tokens.alter(token_id, renewing(tokens))
        assert tokens.ended == []
        assert may_log_in(tokens, token_id)


async def test_a_clock_that_jumps_ends_sessions_and_revives_none_that_were_removed(
    server: RedisServer, stored: redis.Redis, clock: Clock
) -> None:
    async with opened(server) as tokens:
        token_id = await create(tokens)
        begun = clock.now
        clock.now += 8 * DAY
        tokens.end_expired(clock.now)
        assert tokens.ended == [{token_id}]
        clock.now = begun
        assert may_log_in(tokens, token_id)  # it was not over, after all
        tokens.end_expired(clock.now)
        clock.now += 8 * DAY
        tokens.end_expired(clock.now)
        assert tokens.ended == [{token_id}, {token_id}]
        await tokens.sweep(clock.now)
        clock.now = begun
        assert not may_log_in(tokens, token_id)
        assert stored.hlen(keys.TOKENS) == 0


async def test_only_what_has_expired_is_swept(
    server: RedisServer, stored: redis.Redis, clock: Clock
) -> None:
    async with opened(server) as tokens, opened(server) as other:
        short, long = await create(tokens, 5000), await create(tokens)
        await other.load()
        clock.now += 5001
        await tokens.sweep(clock.now)
        assert tokens.removed == [short]
        assert set(tokens.all) == {long}
        assert stored.hkeys(keys.TOKENS) == [long.encode()]
        await other.refresh("")
        assert set(other.all) == {long}
        assert other.ended == [{short}]


async def test_a_sweep_that_failed_halfway_is_finished_by_the_next(
    server: RedisServer, stored: redis.Redis, clock: Clock
) -> None:
    async with opened(server) as tokens:
        token_id = await create(tokens, 5000)
        stored.hdel(keys.TOKENS, token_id)  # as far as the first one came
        clock.now += 5001
        await tokens.sweep(clock.now)
        assert not tokens.all
        assert tokens.removed == []


async def test_a_sweep_does_not_remove_what_another_worker_has_renewed(
    server: RedisServer, stored: redis.Redis, clock: Clock
) -> None:
    async with opened(server, delegation_token_expiry_time_ms="5000") as one, opened(server) as two:
        token_id = await create(one)
        await two.load()
        await two.alter(token_id, renewing(two))  # `one` has not heard of it
        clock.now += 5001
        await one.sweep(clock.now)
        assert one.removed == []
        assert stored.hexists(keys.TOKENS, token_id)


@pytest.mark.parametrize("first", ["renew", "sweep", "together"])
async def test_renewing_and_sweeping_leave_one_outcome(
    server: RedisServer, stored: redis.Redis, clock: Clock, first: str
) -> None:
    """Two workers whose clocks differ by a little: the token is renewed or it is gone."""
    async with opened(server, delegation_token_expiry_time_ms="5000") as one, opened(server) as two:
        token_id = await create(one)
        await two.load()
        sweep_at = clock.now + 5001
        clock.now += 4999
        renewal = two.alter(token_id, renewing(two, 5000))
        sweep = one.sweep(sweep_at)
        outcome: object
        if first == "renew":
            outcome = await renewal
            await sweep
        elif first == "sweep":
            await sweep
            (outcome,) = await asyncio.gather(renewal, return_exceptions=True)
        else:
            outcome, _ = await asyncio.gather(renewal, sweep, return_exceptions=True)
        is_there = stored.hexists(keys.TOKENS, token_id)
        if isinstance(outcome, KafkaError):
            assert outcome.code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
            assert not is_there
            assert one.removed == [token_id]
        else:
            assert not isinstance(outcome, BaseException), outcome
            assert is_there
            assert one.removed == []
        for worker in (one, two):
            await worker.refresh(token_id)
            assert (token_id in worker.all) == is_there


async def test_a_removal_of_unknown_outcome_is_finished_by_the_next_request(
    server: RedisServer, stored: redis.Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(server) as tokens:
        token_id = await create(tokens)

        async def lost(*_: object) -> bool:
            stored.hdel(keys.TOKENS, token_id)  # it was done, but the reply did not come
            raise StoreUnavailable("the connection was lost")

        with monkeypatch.context() as patched:
            patched.setattr(TokenStore, "replace", lost)
            with pytest.raises(StoreUnavailable):
                await tokens.alter(token_id, expiring())
        assert may_log_in(tokens, token_id)
        with pytest.raises(KafkaError) as refusal:
            await tokens.alter(token_id, expiring())
        assert refusal.value.code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        assert tokens.ended == [{token_id}]
        assert not may_log_in(tokens, token_id)


async def test_tokens_of_another_key_cannot_be_used(
    server: RedisServer,
    stored: redis.Redis,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened(server) as tokens:
        token_id = await create(tokens)
        old = tokens.hmac(token_id)
    async with opened(server, delegation_token_secret_key="another") as tokens:
        assert "delegation.token.secret.key" in caplog.text
        assert not tokens.all
        assert tokens.find(SHA_256, token_id).owner is None
        with pytest.raises(KafkaError):
            tokens.id_of(old)
        clock.now += 8 * DAY
        await tokens.sweep(clock.now)
        assert stored.hlen(keys.TOKENS) == 0
    async with opened(server, delegation_token_secret_key="") as tokens:
        assert not tokens.is_enabled


async def test_an_owner_has_only_so_many_tokens(
    server: RedisServer, stored: redis.Redis, clock: Clock
) -> None:
    async with opened(server, moldau_delegation_tokens_per_owner="2") as tokens:
        first = await create(tokens)
        await create(tokens)
        with pytest.raises(KafkaError) as refusal:
            await create(tokens)
        assert refusal.value.code == ErrorCode.POLICY_VIOLATION
        await create(tokens, owner="User:bob")
        await tokens.alter(first, expiring())
        await create(tokens)


async def test_an_entry_that_cannot_be_read_hinders_no_other(
    server: RedisServer, stored: redis.Redis, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(server) as tokens:
        token_id = await create(tokens)
        stored.hset(keys.TOKENS, "broken", b"\xff")
        stored.hset(keys.TOKENS, b"\xff\xfe", stored.hget(keys.TOKENS, token_id) or b"")
        await tokens.load()
        assert set(tokens.all) == {token_id}
        assert "cannot be read" in caplog.text


async def test_a_full_store_takes_no_token_but_lets_one_be_taken_away(
    server: RedisServer, stored: redis.Redis, clock: Clock
) -> None:
    async with opened(server) as tokens:
        token_id = await create(tokens)
        stored.config_set("maxmemory", 1)
        try:
            with pytest.raises(StoreFull):
                await create(tokens)
            await tokens.alter(token_id, renewing(tokens, 1000))
            await tokens.alter(token_id, expiring())
        finally:
            stored.config_set("maxmemory", 0)
        assert stored.hlen(keys.TOKENS) == 0
