"""An exception in the middle of a transition, on a real store: nothing stays half changed.

Groups of both protocols and transactional ids run in the same runtime. Whoever waits is refused
with an error that clients retry, the machine is reloaded from the store, the next request works,
and other machines do not notice. What only groups or transactional ids do:
test_groups_defects.py, test_transactions_defects.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ClassVar

import pytest
import redis

from moldau.broker.coordinator.runtime import recovery
from moldau.broker.coordinator.runtime.runtime import Runtime
from moldau.broker.errors import ErrorCode
from moldau.broker.group.classic.group import Group
from moldau.broker.group.modern.group import ConsumerGroup
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.txn.effects import InitAnswer
from moldau.broker.txn.record import TxnState
from moldau.broker.txn.transaction import Transaction
from tests.support.drivers import group_shell, txn_shell
from tests.support.stores.redis_server import RedisServer

NAME, OTHER = "app: one", "app: two"
NONE = ErrorCode.NONE
RETRIED = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}


class Defect(Exception):
    pass


class World(ABC):
    """One kind of machine: where its transitions are broken, and how a client uses it."""

    machine: ClassVar[type]
    places: ClassVar[tuple[str, ...]]
    retried = RETRIED
    own: Any
    known: dict[str, str]
    """Member ids, as clients know them."""

    @classmethod
    @abstractmethod
    def running(cls, server: RedisServer) -> contextlib.AbstractAsyncContextManager[World]: ...

    @abstractmethod
    async def round(self, name: str) -> None:
        """Change the machine and have it stored. A client retries errors of `retried`; any other
        error fails the test."""

    @abstractmethod
    async def check(self) -> None:
        """What was stored before the exception is still there."""

    @property
    def runtime(self) -> Runtime[Any]:
        found: Runtime[Any] = self.own.coordinator
        return found

    async def done(self, ask: Callable[[], Awaitable[Any]], *again: ErrorCode) -> Any:
        """Repeat a request until it succeeds, or has one of the errors `again`."""
        async with asyncio.timeout(20):
            while True:
                answer = await ask()
                if answer.error is NONE or answer.error in again:
                    return answer
                assert answer.error in self.retried, answer
                await asyncio.sleep(0.005)


class ClassicGroup(World):
    machine = Group
    places = (
        "handle",
        "move",
        "begin_next_generation",
        "renew_session",
        "extend_session",
        "arm",
        "cancel",
        "reply",
        "store",
        "begin_write",
        "write_begins",
        "write_ended",
        "_persist",
        "finish",
        "take_effects",
    )

    def __init__(self, own: group_shell.Shell) -> None:
        self.own = own
        self.known = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, server: RedisServer) -> AsyncIterator[World]:
        async with group_shell.shell(server) as own:
            yield cls(own)

    async def round(self, name: str) -> None:
        """The member joins again, and syncs; when the rebalance is lost it begins again."""
        while not await self.rejoined(name):
            pass
        if self.own.offset(name) is None:
            await self.own.commit(name, 7)

    async def rejoined(self, name: str) -> bool:
        lost = (
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.UNKNOWN_MEMBER_ID,
        )
        member_id = self.known.pop(name, "")
        joined = await self.done(lambda: self.own.join(name, member_id), *lost)
        if joined.error is not NONE:  # it was never stored
            return False
        self.known[name] = joined.member_id
        synced = await self.done(lambda: self.own.sync(name, joined), *lost)
        return synced.error is NONE

    async def check(self) -> None:
        group = self.own.coordinator.groups.by_id[NAME]
        assert (group.state, group.size) == ("Stable", 1)
        assert self.own.offset(NAME) == 7
        await self.own.quiet()


class ModernGroup(World):
    machine = ConsumerGroup
    places = (
        "handle",
        "enter",
        "take_step",
        "changed",
        "renew_session",
        "extend_session",
        "raise_epoch",
        "rest",
        "finish",
        "arm",
        "reply",
        "answer_when_stored",
        "stored_for",
        "begin_write",
        "write_begins",
        "write_ended",
        "_persist",
        "head",
        "take_effects",
    )

    def __init__(self, own: group_shell.Shell) -> None:
        self.own = own
        self.joined: dict[str, list[str]] = {NAME: [], OTHER: []}
        self.epochs = {NAME: 0, OTHER: 0}
        self.known = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, server: RedisServer) -> AsyncIterator[World]:
        async with group_shell.shell(server, topics={"t": 4, "u": 2}) as own:
            at_once = {"group.consumer.assignment.interval.ms": "0"}
            own.coordinator.use_config(BrokerConfig(group_shell.QUICK | at_once))
            yield cls(own)

    async def round(self, name: str) -> None:
        """Another member joins."""
        member_id = f"member {len(self.joined[name])}"
        answer = await self.done(lambda: self.own.heartbeat(name, member_id, names=("t", "u")))
        assert answer.epoch > self.epochs[name]  # no epoch is given out twice
        self.epochs[name] = answer.epoch
        self.joined[name].append(member_id)
        if self.own.offset(name) is None:
            await self.own.commit(name, 7)

    async def check(self) -> None:
        group = self.own.coordinator.groups.by_id[NAME]
        assert group.group_epoch == self.epochs[NAME]
        assert sorted(group.members) == self.joined[NAME]  # the store keeps no order
        held = [place for member in group.members.values() for place in member.assigned]
        assert len(held) == len(set(held)) == 6
        assert self.own.offset(NAME) == 7
        await self.own.quiet()


class TransactionalId(World):
    machine = Transaction
    retried = RETRIED | {ErrorCode.CONCURRENT_TRANSACTIONS}
    places = (
        "_requested",
        "go_on",
        "_decide",
        "_persisted",
        "_stored",
        "settle",
        "_markers_written",
        "complete",
        "put",
        "become",
        "begin",
        "arm_by",
        "reply",
        "write_markers",
        "take_effects",
        "handle",
        "write_begins",
        "write_ended",
    )

    def __init__(self, own: txn_shell.Shell) -> None:
        self.own = own
        self.producers: list[InitAnswer] = []
        self.known = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, server: RedisServer) -> AsyncIterator[World]:
        async with txn_shell.txn_shell(server) as own:
            yield cls(own)

    async def round(self, name: str) -> None:
        """A new producer, and a transaction."""
        producer: InitAnswer = await self.done(lambda: self.own.init(name))
        if name == NAME:
            assert all(producer.producer_epoch > one.producer_epoch for one in self.producers)
            self.producers.append(producer)
        await self.done(lambda: self.own.add(name, producer))
        await self.done(lambda: self.own.end(name, producer))
        await self.own.until(name, TxnState.COMPLETE_COMMIT)

    async def check(self) -> None:
        for stale in self.producers[:-1]:
            answer = await self.own.add(NAME, stale)
            assert answer.error in (
                ErrorCode.PRODUCER_FENCED,
                ErrorCode.INVALID_PRODUCER_EPOCH,
            )


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "PAUSE_S", 0.01)
    monkeypatch.setattr(recovery, "RETRY_S", 0.01)


@pytest.fixture(autouse=True)
def _empty(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()


WORLDS = (ClassicGroup, ModernGroup, TransactionalId)
CASES = [
    pytest.param(world, place, id=f"{world.__name__}-{place}")
    for world in WORLDS
    for place in world.places
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("skipped", [0, 2])
@pytest.mark.parametrize(("world", "method"), CASES)
async def test_half_a_change_is_taken_back(
    server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    world: type[World],
    method: str,
    skipped: int,
    after: bool,
) -> None:
    """Wherever it is thrown, before or after the method did its work, in one of its first calls."""
    calls = 0
    whole = getattr(world.machine, method)

    def broken(machine: Any, *args: Any) -> Any:
        nonlocal calls
        if machine.name != NAME:
            return whole(machine, *args)
        calls += 1
        if calls != skipped + 1:
            return whole(machine, *args)
        if after:
            whole(machine, *args)
        raise Defect(method)

    async with world.running(server) as own:
        await own.round(NAME)
        await own.round(OTHER)
        with monkeypatch.context() as patch:
            patch.setattr(world.machine, method, broken)
            await own.round(NAME)
            await asyncio.wait_for(own.round(OTHER), 10)
            await reloaded(own)
        assert calls > skipped or skipped  # it was thrown
        await own.check()
        await own.round(NAME)
        await own.check()
        assert not own.runtime._open
        assert not own.runtime.writes.under_way
    async with world.running(server) as heir:
        heir.known = own.known
        await heir.round(NAME)


async def reloaded(own: World) -> None:
    await group_shell.until(lambda: not own.runtime.table.is_reloading(NAME))
