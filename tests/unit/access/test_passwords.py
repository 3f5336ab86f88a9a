"""PLAIN's passwords: checked in a thread, remembered when right, bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moldau.broker.access import passwords as module
from moldau.broker.access.passwords import Passwords
from moldau.broker.access.users import Users
from moldau.broker.security import scram
from moldau.broker.security.accounts import Account
from moldau.broker.security.sasl import Mechanism
from moldau.broker.security.scram import credential_from, salted_password
from moldau.broker.store.topics import TopicStore
from moldau.broker.store.users import UserStore

SHA_256, SHA_512 = Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512


def account(password: str, revision: int, mechanism: Mechanism = SHA_256) -> Account:
    salted = salted_password(mechanism, password, b"salt", 4096)
    return Account({mechanism: credential_from(mechanism, b"salt", 4096, salted)}, 1, revision)


class World:
    """Users as a test sets them, and how often a password was hashed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: int) -> None:
        store: Any = object()
        self.users = Users(UserStore(store), TopicStore(store))
        self.passwords = Passwords(self.users, **options)
        self.hashed: list[str] = []
        real = scram.is_password

        def is_password(mechanism: Mechanism, password: str, credential: Any) -> bool:
            self.hashed.append(password)
            return real(mechanism, password, credential)

        monkeypatch.setattr(module, "is_password", is_password)

    def set(self, name: str, account: Account) -> None:
        self.users._accounts[name] = account
        self.passwords.forget([name])

    async def check(self, user: str, password: str) -> tuple[bool, int]:
        answered: asyncio.Future[tuple[bool, int]] = asyncio.get_running_loop().create_future()
        taken = self.passwords.check(
            "10.0.0.1", user, password, lambda *given: answered.set_result(given)
        )
        assert taken
        return await answered


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_a_right_password_is_hashed_once(
    monkeypatch: pytest.MonkeyPatch, mechanism: Mechanism
) -> None:
    async def run() -> None:
        world = World(monkeypatch)
        world.set("alice", account("secret", 5, mechanism))
        assert await world.check("alice", "secret") == (True, 5)
        assert await world.check("alice", "secret") == (True, 5)
        assert len(world.hashed) == 1
        assert (await world.check("alice", "wrong"))[0] is False
        assert (await world.check("alice", "wrong"))[0] is False
        assert len(world.hashed) == 3
        world.passwords.close()

    asyncio.run(run())


def test_another_password_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        world = World(monkeypatch)
        world.set("alice", account("secret", 5))
        assert await world.check("alice", "secret") == (True, 5)
        world.set("alice", account("other", 6))
        assert (await world.check("alice", "secret"))[0] is False
        assert await world.check("alice", "other") == (True, 6)
        del world.users._accounts["alice"]
        assert (await world.check("alice", "other"))[0] is False
        world.passwords.close()

    asyncio.run(run())


def test_an_unknown_user_costs_as_much_as_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        world = World(monkeypatch)
        assert await world.check("nobody", "secret") == (False, 0)
        assert world.hashed == ["secret"]
        world.passwords.close()

    asyncio.run(run())


def test_logins_that_come_together_share_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        world = World(monkeypatch, most_waiting=1)
        world.set("alice", account("secret", 5))
        answers = await asyncio.gather(*(world.check("alice", "secret") for _ in range(50)))
        assert answers == [(True, 5)] * 50
        assert len(world.hashed) == 1
        world.passwords.close()

    asyncio.run(run())


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        world = World(monkeypatch, most_waiting=2)
        answers: list[bool] = []
        taken = [
            world.passwords.check("a", "alice", str(n), lambda right, _: answers.append(right))
            for n in range(4)
        ]
        assert taken == [True, True, False, False]
        while len(answers) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert world.passwords.check("a", "alice", "x", lambda *_: None)
        world.passwords.close()

    asyncio.run(run())


def test_one_address_keeps_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        world = World(monkeypatch)
        world.set("alice", account("secret", 5))
        guesses: list[bool] = []
        taken = [
            world.passwords.check("mallory's", "alice", str(n), lambda ok, _: guesses.append(ok))
            for n in range(2 * module.MAX_WAITING)
        ]
        assert taken.count(True) == module.MAX_WAITING // 2
        assert await world.check("alice", "secret") == (True, 5)
        assert guesses == [False] * (module.MAX_WAITING // 2)
        assert world.passwords._waiting_of == {}
        world.passwords.close()

    asyncio.run(run())
