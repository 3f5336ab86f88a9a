"""Which broker a tool asks: that of its machine over unix sockets, or the one it is pointed at."""

from __future__ import annotations

from pathlib import Path

from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker

NOWHERE = "127.0.0.1:1"


def test_the_broker_of_this_machine_is_asked_over_its_sockets(
    moldau: Broker, cli: Cli, name: str
) -> None:
    here = {"MOLDAU_BOOTSTRAP": ""}
    port = str(moldau.port)
    assert cli("topics", "create", name, "--port", port, **here).returncode == 0
    described = cli.json("topics", "describe", name, MOLDAU_PORT=port, **here)
    assert [one["name"] for one in described["topics"]] == [name]
    # Its addresses are shown as clients see them, whatever it was asked over.
    assert cli.json("groups", "list", "--port", port) == cli.json("groups", "list")


def test_an_address_wins_over_the_environment_and_settings(
    cli: Cli, moldau: Broker, tmp_path: Path
) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text(f"bootstrap.servers={NOWHERE}\n")
    assert NOWHERE in cli.refused("topics", "list", "--bootstrap", NOWHERE)
    config = ("--command-config", str(settings))
    assert cli("topics", "list", *config).returncode == 0  # MOLDAU_BOOTSTRAP
    done = cli("topics", "list", *config, MOLDAU_BOOTSTRAP="")
    assert (done.returncode, NOWHERE in done.stderr) == (1, True)
    done = cli("topics", "list", "--port", "1", "--bootstrap", moldau.bootstrap)
    assert done.returncode == 2


def test_settings_that_cannot_be_used_are_named(cli: Cli, tmp_path: Path) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text("security.protocol=SASL_SSL\n")
    refused = cli.refused("topics", "list", "--command-config", str(settings))
    assert f"{settings}: sasl.mechanism is missing" in refused
    assert "cannot be read" in cli.refused("topics", "list", "--command-config", "/nowhere")


def test_a_port_without_tls_is_recognised(cli: Cli, tmp_path: Path) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text("security.protocol=SSL\n")
    refused = cli.refused("topics", "list", "--command-config", str(settings))
    assert "is this a port with TLS?" in refused
