"""`moldau acls` with an authorizer: what is denied, allowed, explained and removed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.brokers.moldau_cli import Cli, OperatorCli
from tests.support.brokers.running import Broker, running_broker

ANYONE = "ANONYMOUS"  # clients of a listener without a login


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"authorizer.class.name": "standard", "super.users": "User:root"}
    with running_broker(workers=2, broker=settings) as started:
        yield started


@pytest.fixture(scope="module")
def client(broker: Broker) -> Cli:
    """Asks over TCP, as ANONYMOUS."""
    return Cli(broker)


@pytest.fixture(scope="module")
def operator(broker: Broker) -> OperatorCli:
    return OperatorCli(broker)


def test_the_operator_may_do_everything_and_clients_what_acls_allow(
    operator: Cli, client: Cli, name: str
) -> None:
    assert operator("topics", "create", name, "--partitions", "3").returncode == 0
    refused = client.refused("topics", "describe", name)
    assert "TOPIC_AUTHORIZATION_FAILED" in refused
    assert "acls explain" in refused

    added = operator("acls", "add", "--user", ANYONE, "--topic", name, "--operation", "describe",
                     "--operation", "describe-configs")  # fmt: skip
    assert added.stdout == (
        f"ALLOW DESCRIBE on topic {name} for User:ANONYMOUS\n"
        f"ALLOW DESCRIBE_CONFIGS on topic {name} for User:ANONYMOUS\n"
    )
    described = client.json("topics", "describe", name)["topics"][0]
    assert described["name"] == name
    assert [one["name"] for one in operator.json("topics", "describe", name)["topics"]] == [name]


def test_acls_are_listed_by_what_applies_and_removed_as_written(operator: Cli, name: str) -> None:
    words = ("--user", "bob", "--consumer", "--topic", f"{name}-", "--group", name, "--prefixed")
    assert len(operator.json("acls", "add", *words)["added"]) == 3
    operator("acls", "add", "--user", "bob", "--operation", "write", "--topic", f"{name}-eu")
    listed = operator.json("acls", "list", "--topic", f"{name}-eu")["acls"]
    assert sorted((one["operation"], one["pattern"]) for one in listed) == [
        ("DESCRIBE", "PREFIXED"), ("READ", "PREFIXED"), ("WRITE", "LITERAL"),
    ]  # fmt: skip
    table = operator("acls", "list", "--user", "bob", "--prefixed", "--topic", f"{name}-").stdout
    assert f"{name}-*" in table
    assert len(table.splitlines()) == 3

    removed = operator.json("acls", "remove", "--yes", *words)["removed"]
    assert len(removed) == 3
    asked = operator("acls", "remove", "--user", "bob", "--topic", f"{name}-eu", typed="n\n")
    assert (asked.returncode, "WRITE" in asked.stderr) == (1, True)
    asked = operator("acls", "remove", "--user", "bob", "--topic", f"{name}-eu", typed="y\n")
    assert asked.stdout == f"removed: ALLOW WRITE on topic {name}-eu for User:bob\n"
    assert operator.json("acls", "list", "--user", "bob") == {"acls": []}
    nothing = operator("acls", "remove", "--user", "bob", "--yes")
    assert "no ACL matches" in nothing.stdout
    assert operator("acls", "remove", "--yes").returncode == 2


def test_why_something_is_allowed_or_denied(operator: Cli, name: str) -> None:
    operator("acls", "add", "--user", "eve", "--operation", "read", "--topic", f"{name}-",
             "--prefixed")  # fmt: skip
    question = ("acls", "explain", "--user", "eve", "--topic", f"{name}-eu")
    denied = operator(*question, "--operation", "write").stdout
    assert denied.startswith("denied: no ACL allows it\nnearest: ALLOW READ on topics ")
    assert "(it allows READ; " in denied
    assert denied.endswith(", by local)\n")
    allowed = operator.json(*question, "--operation", "describe")
    assert allowed["allowed"]
    assert allowed["by"]["operation"] == "READ"
    operator("acls", "add", "--user", "*", "--deny", "--operation", "all", "--topic", f"{name}-eu")
    every = operator.json(*question)["operations"]
    assert {one["allowed"] for one in every} == {False}
    root = operator("acls", "explain", "--user", "root", "--cluster", "--operation", "alter")
    assert root.stdout == "allowed: User:root is a super user\n"


def test_without_an_authorizer_there_is_nothing_to_add(cli: Cli, name: str) -> None:
    words = ("--user", name, "--operation", "read", "--topic", name)
    refused = cli.refused("acls", "add", *words)
    assert "SECURITY_DISABLED" in refused
    assert "--secure" in refused
    assert "no authorizer is configured" in cli.refused("acls", "explain", *words)
