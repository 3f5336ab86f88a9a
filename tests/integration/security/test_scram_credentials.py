"""Describe- and AlterUserScramCredentials, by raw requests and by clients' admin interfaces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.alter_user_scram_credentials import ScramCredentialDeletion
from moldau.broker.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from tests.support.brokers.running import Broker, running_broker
from tests.support.raw.client import RawClient
from tests.support.raw.scram_users import (
    SHA_256,
    SHA_512,
    alter,
    remove_user,
    set_password,
    upsertion,
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker(workers=2) as running:
        yield running


def described(client: RawClient, *names: str) -> dict[str, tuple[int, list[tuple[int, int]]]]:
    request = DescribeUserScramCredentialsRequest([UserName(name) for name in names] or None)
    response = client.call(request, 0)
    assert response.error_code == 0
    return {
        result.user: (
            result.error_code,
            sorted((info.mechanism, info.iterations) for info in result.credential_infos),
        )
        for result in response.results
    }


def test_a_user_is_known_to_every_worker_when_it_is_answered(clients: list[RawClient]) -> None:
    for number, (one, other) in enumerate((clients, clients[::-1])):
        user = f"everywhere-{number}"
        assert described(one, user) == {user: (ErrorCode.RESOURCE_NOT_FOUND, [])}
        set_password(one, user, "secret", 8192)
        assert described(other, user) == {user: (0, [(SHA_256, 8192), (SHA_512, 8192)])}
        assert user in described(other)
        remove_user(other, user)
        assert user not in described(one)


def test_one_mechanism_can_be_taken_away(clients: list[RawClient]) -> None:
    set_password(clients[0], "both", "secret")
    results = alter(clients[0], ScramCredentialDeletion("both", SHA_256))
    assert (results["both"].error_code, results["both"].error_message) == (0, None)
    assert described(clients[1], "both") == {"both": (0, [(SHA_512, 4096)])}
    again = alter(clients[0], ScramCredentialDeletion("both", SHA_256))
    assert again["both"].error_code == ErrorCode.RESOURCE_NOT_FOUND


def test_what_is_refused_is_named_and_the_rest_is_done(clients: list[RawClient]) -> None:
    results = alter(
        clients[0],
        ScramCredentialDeletion("nobody", SHA_256),
        ScramCredentialDeletion("twice", SHA_256),
        upsertion("twice", "x", SHA_256),
        upsertion("again", "x", SHA_512),
        upsertion("again", "x", SHA_512),
        upsertion("few", "x", iterations=4095),
        upsertion("many", "x", iterations=16385),
        upsertion("other", "x", mechanism=7),
        upsertion("", "x"),
        upsertion("x" * 2000, "x"),
        upsertion("good", "x"),
    )
    assert {name[:9]: result.error_code for name, result in results.items()} == {
        "nobody": ErrorCode.RESOURCE_NOT_FOUND,
        "twice": ErrorCode.DUPLICATE_RESOURCE,
        "again": ErrorCode.DUPLICATE_RESOURCE,
        "few": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "many": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "other": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        "": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "x" * 9: ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "good": 0,
    }
    assert not {"twice", "again", "few", "many", "other", ""} & described(clients[0]).keys()
    assert described(clients[1], "good")["good"][0] == 0


def test_a_user_named_twice_is_described_once_with_an_error(clients: list[RawClient]) -> None:
    assert described(clients[0], "x", "x") == {"x": (ErrorCode.DUPLICATE_RESOURCE, [])}


def test_no_password_and_no_salted_password_is_kept(
    clients: list[RawClient], store: redis.Redis
) -> None:
    change = upsertion("kept", "my password")
    assert alter(clients[0], change)["kept"].error_code == 0
    stored = store.hget("moldau:users", "kept")
    assert isinstance(stored, bytes)
    assert change.salt in stored
    assert change.salted_password not in stored
    assert b"my password" not in stored


def test_confluent_kafka_administers_users(broker: Broker) -> None:
    admin: Any = AdminClient({"bootstrap.servers": broker.bootstrap})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 5000)
    change = UserScramCredentialUpsertion("from-librdkafka", info, b"secret")
    admin.alter_user_scram_credentials([change])["from-librdkafka"].result(30)
    found = admin.describe_user_scram_credentials(["from-librdkafka"])
    (credential,) = found["from-librdkafka"].result(30).scram_credential_infos
    assert (credential.mechanism, credential.iterations) == (info.mechanism, 5000)
    removal = UserScramCredentialDeletion("from-librdkafka", ScramMechanism.SCRAM_SHA_512)
    admin.alter_user_scram_credentials([removal])["from-librdkafka"].result(30)
    everyone = admin.describe_user_scram_credentials().result(30)
    assert "from-librdkafka" not in everyone
