"""`moldau tokens`: made, used, renewed and ended, by a user and by the operator."""

from __future__ import annotations

import base64
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.ops.client import read_client_settings
from tests.support.brokers.moldau_cli import Cli, OperatorCli
from tests.support.brokers.running import Broker, running_broker
from tests.support.brokers.sasl_broker import SaslBroker

HOUR, DAY = 3_600_000, 86_400_000
JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@pytest.fixture(scope="module")
def secure() -> Iterator[Broker]:
    with running_broker(listeners=["SASL_SSL"], workers=1, secure=True) as started:
        made = SaslBroker(started)
        for user in ("alice", "bob", "spark"):
            made.set_password(user, "secret")
        yield started


@pytest.fixture
def operator(secure: Broker) -> OperatorCli:
    return OperatorCli(secure)


class UserCli(Cli):
    """The command of somebody who logs in with the settings in a file."""

    def __init__(self, broker: Broker, settings: Path) -> None:
        super().__init__(broker)
        self.env["MOLDAU_COMMAND_CONFIG"] = str(settings)


def user_cli(broker: Broker, directory: Path, user: str) -> UserCli:
    settings = directory / f"{user}.properties"
    settings.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\n"
        f"ssl.truststore.location={broker.data_dir}/security/ca.pem\nssl.truststore.type=PEM\n"
        f'sasl.jaas.config={JAAS} username="{user}" password="secret";\n'
    )
    return UserCli(broker, settings)


@pytest.fixture
def alice(secure: Broker, tmp_path: Path) -> UserCli:
    return user_cli(secure, tmp_path, "alice")


def test_the_secret_is_made_once_and_for_the_broker_alone(secure: Broker) -> None:
    path = secure.data_dir / "security" / "token-secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_text().strip()) >= 64


def test_a_user_makes_uses_renews_and_ends_a_token(alice: UserCli, tmp_path: Path) -> None:
    settings = tmp_path / "job.properties"
    made = alice.json("tokens", "create", "--lifetime", "2d", "--renewer", "spark",
                      "--properties", str(settings))  # fmt: skip
    assert (made["owner"], made["renewers"]) == ("User:alice", ["User:spark"])
    assert made["max_ms"] - made["issued_ms"] == 2 * DAY
    assert made["expires_ms"] - made["issued_ms"] == DAY
    assert len(base64.b64decode(made["hmac"])) == 64

    assert stat.S_IMODE(settings.stat().st_mode) == 0o600
    sasl = read_client_settings(str(settings)).security.sasl
    assert sasl is not None
    assert (sasl.username, sasl.is_delegation_token) == (made["token"], True)
    assert "secret" not in settings.read_text().replace("security", "")
    as_job = {"MOLDAU_COMMAND_CONFIG": str(settings)}
    assert alice("topics", "list", **as_job).returncode == 0
    refused = alice("tokens", "create", **as_job)
    assert refused.returncode == 1
    assert "not with a token" in refused.stderr

    (listed,) = alice.json("tokens", "list")["tokens"]
    assert listed == {name: made[name] for name in made if name != "hmac"}
    assert alice.json("tokens", "list", "--show-hmac")["tokens"] == [made]
    shown = alice("tokens", "list").stdout
    assert made["token"] in shown
    assert made["hmac"] not in shown
    assert made["hmac"] in alice("tokens", "list", "--show-hmac").stdout

    (renewed,) = alice.json("tokens", "renew", made["token"], "--for", "1h")["renewed"]
    assert renewed["expires_ms"] < made["expires_ms"]
    again = alice("tokens", "renew", "--hmac-stdin", typed=made["hmac"] + "\n")
    assert again.returncode == 0, again.stderr
    assert "in 23 h 59 min" in again.stdout
    assert "(in 9 min" in alice("tokens", "expire", made["token"], "--in", "10min").stdout
    assert alice("tokens", "expire", made["token"]).stdout == f"token {made['token']} is removed\n"
    out = alice("topics", "list", **as_job)
    assert out.returncode == 1
    assert "does not accept delegation token" in out.stderr
    assert alice.json("tokens", "list") == {"tokens": []}
    assert "no token" in alice.refused("tokens", "renew", made["token"])


def test_the_operator_makes_tokens_for_users_and_ends_them(
    operator: OperatorCli, secure: Broker, tmp_path: Path
) -> None:
    settings = tmp_path / "token.properties"
    made = operator("tokens", "create", "--owner", "User:bob", "--properties", str(settings))
    assert made.returncode == 0, made.stderr
    assert f"in {settings}" in made.stdout
    sasl = read_client_settings(str(settings)).security.sasl
    assert sasl is not None
    assert sasl.password not in made.stdout
    assert UserCli(secure, settings)("topics", "list").returncode == 0
    assert sasl.username in operator("tokens", "list", "--owner", "bob").stdout
    # The user goes, its token would stay: that is said, with what to do.
    removed = operator("users", "remove", "bob")
    assert "moldau tokens expire --owner NAME" in removed.stderr
    assert UserCli(secure, settings)("topics", "list").returncode == 0
    ended = operator.json("tokens", "expire", "--owner", "bob")["expired"]
    assert [one["token"] for one in ended] == [sasl.username]
    assert UserCli(secure, settings)("topics", "list").returncode == 1


def test_a_token_for_another_needs_the_right_to_it(
    operator: OperatorCli, secure: Broker, tmp_path: Path
) -> None:
    spark = user_cli(secure, tmp_path, "spark")
    refused = spark.refused("tokens", "create", "--owner", "carol")
    assert "--tokens-of OWNER --operation create_tokens" in refused
    words = ("--user", "spark", "--tokens-of", "carol", "--operation", "create_tokens")
    done = operator("acls", "add", *words)
    assert done.returncode == 0, done.stderr
    explained = operator("acls", "explain", *words)
    assert explained.stdout.startswith("allowed"), explained
    made = spark.json("tokens", "create", "--owner", "carol")
    assert (made["owner"], made["requester"]) == ("User:carol", "User:spark")
    assert "only its owner and its renewers" in spark.refused("tokens", "expire", made["token"])
    assert operator("tokens", "expire", made["token"]).returncode == 0


def test_mistakes_are_named(alice: UserCli, operator: OperatorCli, tmp_path: Path) -> None:
    assert "add --owner NAME" in operator.refused("tokens", "create")
    assert "no token nonsense" in operator.refused("tokens", "renew", "nonsense")
    assert "base64" in alice.refused("tokens", "expire", "--hmac-stdin", typed="not base64!\n")
    unknown = base64.b64encode(b"x" * 64).decode()
    assert "there is no such token" in alice.refused("tokens", "renew", "--hmac-stdin",
                                                     typed=unknown)  # fmt: skip
    there = tmp_path / "there.properties"
    there.write_text("mine")
    assert "exists already" in alice.refused("tokens", "create", "--properties", str(there))
    assert there.read_text() == "mine"
    assert alice.json("tokens", "list") == {"tokens": []}  # none was left behind
    for words in (("renew",), ("expire",), ("expire", "x", "--owner", "y"),
                  ("create", "--lifetime", "soon"), ("create", "--lifetime", "0s")):  # fmt: skip
        assert alice("tokens", *words).returncode == 2


def test_without_a_secret_the_remedy_is_named(cli: Cli, moldau: Broker) -> None:
    operator = OperatorCli(moldau)
    for words in (("create", "--owner", "x"), ("list",)):
        refused = operator.refused("tokens", *words)
        assert "--secure" in refused
        assert "delegation.token.secret.key" in refused
    assert "--command-config" in cli.refused("tokens", "list")
