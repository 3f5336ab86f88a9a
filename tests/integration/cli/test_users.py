"""`moldau users`: passwords in, credentials out, and no password anywhere else."""

from __future__ import annotations

import pytest
import redis

from moldau.broker.security.sasl import Mechanism
from moldau.broker.security.scram import is_password
from moldau.broker.store import keys
from moldau.broker.store.users import read_account
from tests.support.brokers.moldau_cli import Cli


def is_the_password(store: redis.Redis, user: str, password: str) -> bool:
    """Whether it is the user's password with both mechanisms."""
    stored = store.hget(keys.USERS, user)
    assert isinstance(stored, bytes)
    credentials = read_account(stored).credentials
    assert set(credentials) == {Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512}
    assert {one.iterations for one in credentials.values()} == {16_384}
    assert password.encode() not in stored
    return all(is_password(kind, password, one) for kind, one in credentials.items())


def test_a_user_is_added_given_another_password_and_removed(
    cli: Cli, store: redis.Redis, name: str
) -> None:
    done = cli("users", "add", name, "--password-stdin", typed="p ä,=\n")
    assert (done.returncode, done.stdout) == (0, f"user {name} added\n")
    assert is_the_password(store, name, "p ä,=")
    listed = {one["user"]: one["mechanisms"] for one in cli.json("users", "list")["users"]}
    assert listed[name] == {"SCRAM-SHA-256": 16_384, "SCRAM-SHA-512": 16_384}
    assert name in cli("users", "list").stdout

    assert "users passwd" in cli.refused("users", "add", name, "--password-stdin", typed="x\n")
    changed = cli.json("users", "passwd", name, "--generate")
    assert is_the_password(store, name, changed["password"])
    assert len(changed["password"]) >= 32

    assert cli("users", "remove", name).stdout == f"{name} deleted\n"
    assert store.hget(keys.USERS, name) is None
    assert "there is no user" in cli.refused("users", "remove", name)
    assert "users add" in cli.refused("users", "passwd", name, "--generate")


def test_a_generated_password_is_shown_once(cli: Cli, store: redis.Redis, name: str) -> None:
    done = cli("users", "add", name, "--generate")
    first, second = done.stdout.splitlines()
    assert first == f"user {name} added"
    assert is_the_password(store, name, second.removeprefix("password: "))
    assert "not shown again" in done.stderr


@pytest.mark.parametrize(
    ("words", "typed", "why"),
    [
        ((), "", "--password-stdin or --generate"),
        (("--password-stdin",), "\n", "empty password"),
        (("--password-stdin",), "", "empty password"),
    ],
)
def test_no_user_without_a_password(
    cli: Cli, name: str, words: tuple[str, ...], typed: str, why: str
) -> None:
    assert why in cli.refused("users", "add", name, *words, typed=typed)
    assert name not in cli("users", "list").stdout
