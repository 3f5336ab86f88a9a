"""Sessions: their end, logging in again (KIP-368), and users that are changed meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from kafka.net.sasl.scram import ScramClient

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.broker.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.support.brokers.sasl_broker import (
    PLAIN,
    SHA_256,
    SHA_512,
    TOKENS,
    SaslBroker,
    sasl_broker,
)
from tests.support.brokers.tokens import claims, signed
from tests.support.raw.sasl import LoginFailed, SaslClient, closes_soon

FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED
SESSION_MS = 1500
PREFIX = "listener.name.sasl_plaintext"


@pytest.fixture(scope="module")
def sasl() -> Iterator[SaslBroker]:
    configs: dict[str, object] = {
        f"{PREFIX}.scram-sha-512.connections.max.reauth.ms": SESSION_MS,
        f"{PREFIX}.oauthbearer.connections.max.reauth.ms": 3_600_000,
    }
    with sasl_broker(configs) as running:
        running.set_password("bob", "secret")
        yield running


@pytest.fixture(params=["router", "0"])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_answer_says_how_long_a_session_lasts(sasl: SaslBroker, where: str) -> None:
    now = time.time_ns() // 1_000_000
    lifetimes = {}
    for mechanism, lasts_s in ((SHA_256, 0), (SHA_512, 0), (TOKENS, 600), (TOKENS, 7200)):
        with SaslClient(sasl.port(where)) as client:
            token = signed(claims(now, exp=now // 1000 + lasts_s))
            last = client.log_in(mechanism, "alice", "secret", token)
            lifetimes[mechanism, lasts_s] = last.session_lifetime_ms
    assert lifetimes[SHA_256, 0] == 0
    assert 0 < lifetimes[SHA_512, 0] <= SESSION_MS
    assert 0 < lifetimes[TOKENS, 600] <= 600_000
    assert 600_000 < lifetimes[TOKENS, 7200] <= 3_600_000


def test_a_request_after_the_end_of_the_session_closes_the_connection(
    sasl: SaslBroker, where: str
) -> None:
    with sasl.log_in(where, SHA_512) as client:
        assert client.is_served
        time.sleep(SESSION_MS / 1000 + 0.1)
        assert not client.is_served


def test_who_logs_in_again_goes_on(sasl: SaslBroker, where: str) -> None:
    with sasl.log_in(where, SHA_512) as client:
        begun = time.monotonic()
        while time.monotonic() - begun < 2.5 * SESSION_MS / 1000:
            time.sleep(0.6 * SESSION_MS / 1000)
            assert client.log_in(SHA_512, "alice", "secret").session_lifetime_ms > 0
            assert client.is_served


def test_who_is_late_can_still_log_in_again(sasl: SaslBroker, where: str) -> None:
    with sasl.log_in(where, SHA_512) as client:
        time.sleep(SESSION_MS / 1000 + 0.1)
        client.log_in(SHA_512, "alice", "secret")
        assert client.is_served


def test_another_mechanism_or_user_is_refused(sasl: SaslBroker, where: str) -> None:
    for mechanism, user in ((PLAIN, "alice"), (SHA_256, "bob")):
        with sasl.log_in(where, SHA_256) as client:
            with pytest.raises(LoginFailed) as failure:
                client.log_in(mechanism, user, "secret")
            assert failure.value.code == FAILED
            assert "re-authentication" in str(failure.value.text)
            client.must_be_closed()


def test_a_wrong_password_ends_the_session(sasl: SaslBroker, where: str) -> None:
    with sasl.log_in(where, SHA_256) as client:
        with pytest.raises(LoginFailed, match="invalid credentials"):
            client.log_in(SHA_256, "alice", "wrong")
        client.must_be_closed()


def test_logging_in_again_waits_for_what_is_being_served(sasl: SaslBroker, where: str) -> None:
    with sasl.log_in(where, SHA_256) as client:
        topic = MetadataRequestTopic(name="parked")
        client.call(MetadataRequest([topic]), 8)
        fetch = FetchRequest(
            max_wait_ms=300,
            min_bytes=1,
            topics=[FetchTopic(topic="parked", partitions=[FetchPartition(0)])],
        )
        handshake = SaslHandshakeRequest(SHA_256)
        client.send(fetch, 11)
        client.send(handshake, 1)
        assert client.receive(fetch, 11, behind=1).error_code == 0
        assert client.receive(handshake, 1).error_code == 0
        client.exchange(SHA_256, "alice", "secret")
        assert client.is_served


# --- users that change ---


@pytest.mark.parametrize("how", ["password", "removed"])
def test_a_changed_user_is_disconnected_everywhere(sasl: SaslBroker, how: str) -> None:
    user = f"changed-{how}"
    sasl.set_password(user, "secret")
    places = ("router", "router", "0", "1")
    theirs = [
        sasl.log_in(place, mechanism, user) for place in places for mechanism in (PLAIN, SHA_256)
    ]
    for client in theirs[::2]:  # the others have no connection to a worker
        assert client.is_served
    with sasl.log_in("router", TOKENS, user) as by_token, sasl.log_in("router") as alice:
        if how == "password":
            sasl.set_password(user, "other", worker=1)
        else:
            sasl.remove(user)
        assert closes_soon(theirs, 5)
        assert by_token.is_served  # a token is not an account's
        assert alice.is_served
    for place in ("router", "0", "1"):
        for mechanism in (PLAIN, SHA_256):
            with SaslClient(sasl.port(place)) as client, pytest.raises(LoginFailed):
                client.log_in(mechanism, user, "secret")
            if how == "password":
                with SaslClient(sasl.port(place)) as client:
                    client.log_in(mechanism, user, "other")
                    assert client.is_served


def test_a_password_that_changes_during_a_login_does_not_count(
    sasl: SaslBroker, where: str
) -> None:
    sasl.set_password("halfway", "secret")
    with SaslClient(sasl.port(where)) as client:
        client.handshake(SHA_256)
        scram = ScramClient("halfway", "secret", SHA_256)
        first = client.token(scram.first_message())
        scram.process_server_first_message(bytes(first.auth_bytes))
        sasl.set_password("halfway", "other")
        assert client.token(scram.final_message()).error_code == FAILED
        client.must_be_closed()
