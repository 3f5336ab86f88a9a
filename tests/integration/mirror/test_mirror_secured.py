"""`moldau mirror` between brokers with TLS, logins and ACLs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.mirror.mirroring import last_report
from tests.support.brokers.moldau_cli import Cli, OperatorCli
from tests.support.brokers.running import Broker, running_broker
from tests.support.brokers.secured import java_settings, write_settings

PASSWORD = "correct-horse-battery"


@pytest.fixture(scope="module")
def source() -> Iterator[Broker]:
    with running_broker(workers=1, secure="true") as broker:
        yield broker


@pytest.fixture(scope="module")
def target() -> Iterator[Broker]:
    with running_broker(workers=1, secure="true") as broker:
        yield broker


def acls(broker: Broker) -> list[tuple[str, str, str]]:
    found = OperatorCli(broker).json("acls", "list")["acls"]
    return sorted((one["principal"], one["operation"], one["resource"]) for one in found)


def allow(broker: Broker, user: str, *words: str) -> None:
    OperatorCli(broker).json("acls", "add", "--user", user, *words)


def test_as_operator_here_and_with_a_login_there(source: Broker, target: Broker) -> None:
    operator = OperatorCli(source)
    operator.json("topics", "create", "shop.a")
    assert operator("produce", "shop.a", typed="one\ntwo\n").returncode == 0
    allow(source, "alice", "--topic", "shop.a", "--operation", "read")
    allow(source, "alice", "--topic", "elsewhere", "--operation", "read")
    allow(source, "bob", "--group", "readers", "--operation", "read")
    before = acls(target)
    words = ("mirror", "--from", source.bootstrap, "--topics", r"shop\..*", "--once", "--json")
    done = OperatorCli(target)(*words, "--from-command-config", java_settings(source))
    assert done.returncode == 0, done.stderr
    report = last_report(done.stdout)
    assert (report["records"], report["acls_why"]) == (2, None)
    added = [one for one in acls(target) if one not in before]
    assert ("User:alice", "READ", "shop.a") in added
    assert ("User:bob", "READ", "readers") in added
    assert not any(name == "elsewhere" for _, _, name in acls(target))
    # Without a login the source is not to be asked: said at once, and not waited for.
    done = OperatorCli(target)(*words)
    assert done.returncode == 1
    assert source.bootstrap in done.stderr


def test_who_may_not_act_for_the_cluster_does_not_mirror(
    source: Broker, target: Broker, tmp_path: Path
) -> None:
    operator = OperatorCli(source)
    operator.json("topics", "create", "plain.a")
    assert operator("produce", "plain.a", typed="one\n").returncode == 0
    OperatorCli(target)("users", "add", "carol", "--password-stdin", typed=PASSWORD)
    for operation in ("create", "read", "write", "alter", "describe", "alter_configs"):
        allow(target, "carol", "--topic", "*", "--operation", operation)
    allow(target, "carol", "--topic", "*", "--operation", "describe_configs")
    settings = write_settings(tmp_path / "carol.properties", target, "carol", PASSWORD)
    words = ("mirror", "--from", source.bootstrap, "--topics", r"plain\..*", "--once", "--json")
    login = ("--from-command-config", java_settings(source), "--no-acls", "--no-groups")
    done = Cli(target)(*words, *login, "--command-config", settings)
    assert done.returncode == 1
    assert "CLUSTER_AUTHORIZATION_FAILED" in done.stderr
    OperatorCli(target).json(
        "acls", "add", "--user", "carol", "--cluster", "--operation", "cluster_action"
    )
    done = Cli(target)(*words, *login, "--command-config", settings)
    assert done.returncode == 0, done.stderr
    assert last_report(done.stdout)["records"] == 1
