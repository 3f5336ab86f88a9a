"""Exceptions around a transactional id: in its effects, its timers, its loading, its giving up.

Those in the middle of a transition, wherever it is: test_runtime_defects.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from moldau.broker.coordinator.runtime import recovery
from moldau.broker.errors import ErrorCode
from moldau.broker.placement import slot_of
from moldau.broker.store import keys
from moldau.broker.txn.record import TxnState, decode
from moldau.broker.txn.transaction import Transaction
from moldau.broker.txn.transaction_data import TransactionData
from tests.support.drivers.txn_shell import Shell, txn_shell
from tests.support.stores.redis_server import RedisServer

NAME, OTHER = "app: one", "app: two"
NONE = ErrorCode.NONE
RETRIED = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}


class Defect(Exception):
    pass


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "PAUSE_S", 0.01)
    monkeypatch.setattr(recovery, "RETRY_S", 0.01)


@pytest.fixture(autouse=True)
def raw(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        yield client


class Trap:
    """A method that goes wrong for one id, so many times, before or after its work."""

    def __init__(self, owner: Any, method: str, *, after: bool = True, times: int = 1) -> None:
        self.sprung = 0
        whole = getattr(owner, method)

        def broken(machine: Any, *args: Any) -> Any:
            if machine.transactional_id != NAME or self.sprung >= times:
                return whole(machine, *args)
            self.sprung += 1
            if after:
                whole(machine, *args)
            raise Defect(method)

        self.broken = broken


def stored_state(client: redis.Redis) -> TxnState | None:
    found = client.hget(keys.transaction(slot_of(NAME), NAME).decode(), "record")
    return None if found is None else decode(found).state  # type: ignore[arg-type]


async def loaded(own: Shell) -> None:
    async with asyncio.timeout(20):
        while own.coordinator.transactions.is_reloading(NAME):  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def nothing_is_left(own: Shell) -> bool:
    coordinator = own.coordinator
    return not coordinator._open and not coordinator.writes.under_way


@pytest.mark.parametrize("method", ["save", "save_intact"])
async def test_an_effect_that_cannot_be_begun(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    async with txn_shell(server) as own:
        producer = await own.init(NAME)
        store = own.coordinator._store

        def broken(*_: object) -> None:
            raise Defect(method)

        with monkeypatch.context() as patch:
            if method == "save":
                patch.setattr(store, "save", broken)
                answer = await own.add(NAME, producer)
                assert answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
            else:
                assert (await own.add(NAME, producer)).error is NONE
                patch.setattr(own.coordinator._markers, "write", broken)
                assert (await own.end(NAME, producer)).error in RETRIED | {NONE}
        await loaded(own)
        if method == "save":
            assert (await own.add(NAME, producer)).error is NONE
            assert (await own.end(NAME, producer)).error is NONE
        await own.until(NAME, TxnState.COMPLETE_COMMIT)
        assert (await own.init(NAME)).error is NONE
        assert nothing_is_left(own)


async def test_whoever_waits_is_answered_once_and_timers_end(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the markers of one transaction are being written a request waits for them."""
    async with txn_shell(server) as own:
        producer = await own.init(NAME)
        assert (await own.add(NAME, producer)).error is NONE
        own.markers.is_held = True
        assert (await own.end(NAME, producer)).error is NONE
        waiting = asyncio.ensure_future(own.init(NAME))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        timers = own.coordinator._timers
        assert timers

        trap = Trap(Transaction, "_markers_written")
        with monkeypatch.context() as patch:
            patch.setattr(Transaction, "_markers_written", trap.broken)
            own.markers.release()
            assert (await waiting).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert trap.sprung == 1
            assert not timers
            await loaded(own)

        await own.until(NAME, TxnState.COMPLETE_COMMIT)
        assert (await own.init(NAME)).error is NONE
        assert nothing_is_left(own)


async def test_a_timer_that_fails_fires_again(
    server: RedisServer, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with txn_shell(server) as own:
        producer = await own.init(NAME, timeout_ms=50)
        trap = Trap(Transaction, "_timeout_fired", times=2)
        with monkeypatch.context() as patch:
            patch.setattr(Transaction, "_timeout_fired", trap.broken)
            assert (await own.add(NAME, producer)).error is NONE
            async with asyncio.timeout(20):
                while trap.sprung < 2 or own.state(NAME) is not TxnState.COMPLETE_ABORT:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
        assert (await own.end(NAME, producer)).error is not NONE  # it was aborted
        assert (await own.init(NAME)).error is NONE
        assert stored_state(raw) is not TxnState.ONGOING


async def test_one_that_cannot_be_restored_does_not_keep_others_from_it(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with txn_shell(server) as own:
        producer, other = await own.init(NAME), await own.init(OTHER)
        assert (await own.add(NAME, producer)).error is NONE
    trap = Trap(TransactionData, "arm", times=3)
    with monkeypatch.context() as patch:
        patch.setattr(TransactionData, "arm", trap.broken)
        async with txn_shell(server) as heir:
            assert (await heir.add(OTHER, other)).error is NONE
            await loaded(heir)
            assert trap.sprung == 3
            assert (await heir.end(NAME, producer)).error is NONE


async def test_a_slot_is_given_up_whatever_fails(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with txn_shell(server) as own:
        producer = await own.init(NAME)
        assert (await own.add(NAME, producer)).error is NONE
        own.markers.is_held = True
        assert (await own.end(NAME, producer)).error is NONE
        waiting = asyncio.ensure_future(own.init(NAME))
        await asyncio.sleep(0.01)
        trap = Trap(TransactionData, "cancel_all_timers", after=False)
        with monkeypatch.context() as patch:
            patch.setattr(TransactionData, "cancel_all_timers", trap.broken)
            own.groups.slots.give_up()
        assert (await waiting).error is ErrorCode.NOT_COORDINATOR
        assert not own.coordinator._timers
        assert not own.coordinator.transactions.is_reloading(NAME)
