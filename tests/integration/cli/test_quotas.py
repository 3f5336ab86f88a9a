"""`moldau quotas`: set, shown and removed, by every kind of entity."""

from __future__ import annotations

import pytest

from tests.support.brokers.moldau_cli import Cli


def quotas_of(cli: Cli, *words: str) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    found = cli.json("quotas", "list", *words)["quotas"]
    return [(one["entity"], one["values"]) for one in found]


def test_quotas_of_a_user_and_of_its_clients(cli: Cli, name: str) -> None:
    done = cli("quotas", "set", "--user", name, "--producer-byte-rate", "10mb",
               "--request-percentage", "12.5")  # fmt: skip
    assert done.stdout == (
        f"user {name}: producer_byte_rate 10485760, request_percentage 12.5\n"
    )  # fmt: skip
    cli("quotas", "set", "--user", name, "--client-id", "batch", "--consumer-byte-rate", "1kb")
    assert quotas_of(cli, "--user", name) == [
        ({"user": name}, {"producer_byte_rate": 10485760, "request_percentage": 12.5}),
        ({"user": name, "client-id": "batch"}, {"consumer_byte_rate": 1024}),
    ]
    table = cli("quotas", "list", "--user", name).stdout.splitlines()
    assert table[0].split("  ")[0] == "of"
    assert any(f"user {name}, client-id batch" in line for line in table)

    cli("quotas", "set", "--user", name, "--producer-byte-rate", "5")
    removed = cli("quotas", "remove", "--user", name, "--request-percentage")
    assert removed.stdout == f"user {name}: removed request_percentage\n"
    assert (({"user": name}, {"producer_byte_rate": 5})) in quotas_of(cli, "--user", name)
    assert cli.json("quotas", "remove", "--user", name)["removed"] == ["producer_byte_rate"]
    assert [entity for entity, _ in quotas_of(cli, "--user", name)] == [
        {"user": name, "client-id": "batch"}
    ]
    assert "has no such quota" in cli.refused("quotas", "remove", "--user", name)
    cli("quotas", "remove", "--user", name, "--client-id", "batch")
    assert quotas_of(cli, "--user", name) == []


def test_defaults_and_addresses(cli: Cli, name: str) -> None:
    words = ("--client-id", name, "--user-defaults")
    assert cli("quotas", "set", *words, "--consumer-byte-rate", "1gb").returncode == 0
    assert quotas_of(cli, *words) == [
        ({"user": None, "client-id": name}, {"consumer_byte_rate": 1 << 30})
    ]
    assert "every user without its own" in cli("quotas", "list", *words).stdout
    cli("quotas", "remove", *words)
    address = ("--ip", "10.9.8.7")
    assert cli("quotas", "set", *address, "--connection-creation-rate", "10").returncode == 0
    assert quotas_of(cli, *address) == [({"ip": "10.9.8.7"}, {"connection_creation_rate": 10})]
    refused = cli.refused("quotas", "set", *address, "--producer-byte-rate", "10")
    assert "quotas of ip 10.9.8.7" in refused
    cli("quotas", "remove", *address)


@pytest.mark.parametrize(
    "words",
    [
        ("set", "--producer-byte-rate", "1"),
        ("set", "--user", "a"),
        ("set", "--user", "a", "--user-defaults", "--producer-byte-rate", "1"),
        ("set", "--user", "a", "--ip", "::1", "--producer-byte-rate", "1"),
        ("set", "--user", "a", "--producer-byte-rate", "much"),
        ("set", "--user", "a", "--producer-byte-rate", "0"),
        ("remove",),
    ],
)
def test_what_is_missing_or_means_nothing_is_wrong_usage(cli: Cli, words: tuple[str, ...]) -> None:
    assert cli("quotas", *words).returncode == 2
