"""Confirmed writes on servers that sync at once, late, never, or that do not say."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.errors import StoreFault, StoreTimeout
from moldau.broker.store import confirmation
from moldau.broker.store.confirmation import Confirmation
from moldau.broker.store.connector import Connector
from moldau.broker.store.pipe import Pipe
from moldau.broker.store.store_id import StoreIdentity
from tests.support.drivers.log_host import until
from tests.support.stores.lossy import LossyStore, programs

EVERY_SERVER = pytest.mark.parametrize("server", sorted(programs()))


@pytest.fixture
def server() -> str:
    return "valkey"  # it has WAITAOF, which Redis 7.0 has not


@pytest.fixture
def store(tmp_path: Path, server: str) -> Iterator[LossyStore]:
    made = LossyStore(tmp_path, programs()[server])
    yield made
    made.kill()


class Confirming:
    def __init__(self, url: str) -> None:
        identity = StoreIdentity()
        self.pipe = Pipe(Connector(url), "confirming", identity=identity)
        self.confirmation = Confirmation(identity, self.pipe)


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Confirming]:
    made = Confirming(url)
    await made.pipe.connect()
    try:
        yield made
    finally:
        made.pipe.close()


def calls(store: LossyStore, command: str) -> int:
    with store.client() as client:
        stats: dict[str, Any] = client.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


def without_config(store: LossyStore) -> str:
    """The URL of a user who must not ask for the configuration."""
    with store.client() as client:
        words = ("SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-config")
        client.execute_command("ACL", *words)
    return store.url.replace("//", "//app:secret@")


@EVERY_SERVER
@pytest.mark.parametrize("policy", ["always", "everysec"])
async def test_a_server_that_syncs(store: LossyStore, policy: str) -> None:
    store.start("--appendfsync", policy)
    async with connected(store.url) as confirming:
        await confirming.confirmation.confirm()
        assert confirming.confirmation.is_slow


class SlowDisk:
    """A server that syncs nothing until `recover`, though it is one that does."""

    def __init__(self, store: LossyStore, monkeypatch: pytest.MonkeyPatch, says_so: bool) -> None:
        async def ask_policy(asking: Confirmation) -> None:
            asking._syncs = True if says_so else None

        monkeypatch.setattr(Confirmation, "_ask_policy", ask_policy)
        monkeypatch.setattr(confirmation, "SYNC_MS", 100)
        monkeypatch.setattr(confirmation, "IDLE_LOOKS", 10_000)
        self._store = store
        store.start("--appendfsync", "no")

    def recover(self) -> None:
        with self._store.client() as client:
            client.config_set("appendfsync", "always")


@pytest.mark.parametrize("says_so", [True, False])
async def test_a_sync_that_takes_longer_than_an_attempt_is_waited_for(
    store: LossyStore, monkeypatch: pytest.MonkeyPatch, says_so: bool
) -> None:
    monkeypatch.setattr(confirmation, "ATTEMPTS", 10_000)
    disk = SlowDisk(store, monkeypatch, says_so)
    async with connected(store.url) as confirming:
        confirmed = asyncio.ensure_future(confirming.confirmation.confirm())
        await until(lambda: calls(store, "waitaof") > 3)
        assert not confirmed.done()
        assert confirming.confirmation.is_slow
        assert calls(store, "set") == 1, "each would have to be waited for again"
        disk.recover()
        await confirmed
        # Everything this connection wrote is synced: no wait is needed.
        assert await confirming.pipe.ask("WAITAOF", 1, 0, 1) == [1, 0]
        assert confirming.confirmation.is_slow


async def test_a_sync_that_does_not_come_is_an_error_and_the_next_one_is_waited_for(
    store: LossyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirmation, "ATTEMPTS", 3)
    disk = SlowDisk(store, monkeypatch, says_so=True)
    async with connected(store.url) as confirming:
        for number in (1, 2):
            with pytest.raises(StoreTimeout, match="its disk is slow"):
                await confirming.confirmation.confirm()
            assert calls(store, "waitaof") == 3 * number
        disk.recover()
        await confirming.confirmation.confirm()
        assert await confirming.pipe.ask("WAITAOF", 1, 0, 1) == [1, 0]
        assert confirming.confirmation.is_slow


async def test_a_connection_that_is_lost_while_it_waits(
    store: LossyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was written yet on the next one, and WAITAOF alone would return at once."""
    monkeypatch.setattr(confirmation, "ATTEMPTS", 10_000)
    disk = SlowDisk(store, monkeypatch, says_so=True)
    async with connected(store.url) as confirming:
        confirmed = asyncio.ensure_future(confirming.confirmation.confirm())
        await until(lambda: calls(store, "waitaof") > 1)
        confirming.pipe.drop("on purpose")
        with pytest.raises(StoreFault):
            await confirmed
        await confirming.pipe.wait_up()
        confirmed = asyncio.ensure_future(confirming.confirmation.confirm())
        await until(lambda: calls(store, "waitaof") > 5)
        assert not confirmed.done()
        disk.recover()
        await confirmed


@EVERY_SERVER
async def test_a_server_that_never_syncs_is_not_waited_for(store: LossyStore) -> None:
    store.start("--appendfsync", "no")
    async with connected(store.url) as confirming:
        for _ in range(3):
            await confirming.confirmation.confirm()
        assert not confirming.confirmation.is_slow
        assert calls(store, "waitaof") == 0


async def test_one_that_is_told_to_sync_no_more(
    store: LossyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.start("--appendfsync", "everysec")
    monkeypatch.setattr(confirmation, "SYNC_MS", 1500)
    async with connected(store.url) as confirming:
        await confirming.confirmation.confirm()
        with store.client() as client:
            client.config_set("appendfsync", "no")
        await confirming.confirmation.confirm()
        assert not confirming.confirmation.is_slow


async def test_one_that_never_syncs_and_does_not_say_so(
    store: LossyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.start("--appendfsync", "no")
    monkeypatch.setattr(confirmation, "SYNC_MS", 300)
    async with connected(without_config(store)) as confirming:
        await confirming.confirmation.confirm()
        assert calls(store, "waitaof") == confirmation.IDLE_LOOKS
        assert not confirming.confirmation.is_slow
        await confirming.confirmation.confirm()
        assert calls(store, "waitaof") == confirmation.IDLE_LOOKS


@EVERY_SERVER
async def test_a_server_without_a_file_is_not_waited_for(store: LossyStore) -> None:
    store.start("--appendonly", "no")
    async with connected(store.url) as confirming:
        await confirming.confirmation.confirm()
        assert not confirming.confirmation.is_slow
        assert calls(store, "waitaof") == 0
