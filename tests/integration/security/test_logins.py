"""Logging in, step by step over raw sockets: on a worker's port and through the router."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.net.sasl.scram import ScramClient

from moldau.broker.errors import ErrorCode
from moldau.broker.private.api import PrivateApi, private_frame
from moldau.broker.private.table import PREAMBLE, TABLE
from moldau.broker.security.identity import OPERATOR
from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
)
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.metadata import MetadataRequest
from moldau.broker.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from moldau.broker.wire.messages.sasl_handshake import SaslHandshakeRequest
from moldau.broker.wire.schema import Message
from tests.support.brokers.sasl_broker import (
    MECHANISMS,
    PLAIN,
    SHA_256,
    SHA_512,
    TOKENS,
    SaslBroker,
    sasl_broker,
)
from tests.support.brokers.tokens import claims, rsa_key, signed
from tests.support.raw.sasl import LoginFailed, SaslClient

FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.fixture(scope="module")
def sasl() -> Iterator[SaslBroker]:
    with sasl_broker(listeners=["SASL_PLAINTEXT", "PLAINTEXT"]) as running:
        yield running


@pytest.fixture(params=["router", "0"])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(sasl: SaslBroker, where: str) -> Iterator[SaslClient]:
    with SaslClient(sasl.port(where)) as made:
        yield made


def now() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_who_has_logged_in_is_served(sasl: SaslBroker, where: str, mechanism: str) -> None:
    with sasl.log_in(where, mechanism) as client:
        assert client.is_served
        found = client.call(FindCoordinatorRequest(key="g"), 3)
        assert found.error_code == 0
        again = client.call(SaslAuthenticateRequest(b"x"), 2)
        assert again.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.is_served


def test_versions_are_asked_first_by_most_clients(client: SaslClient) -> None:
    client.send(ApiVersionsRequest(), 0)
    assert client.receive(ApiVersionsRequest(), 0).error_code == 0
    assert client.log_in(SHA_512, "alice", "secret").session_lifetime_ms == 0
    assert client.is_served


def test_a_version_that_is_not_served_can_be_asked_for_first(client: SaslClient) -> None:
    client.send_frame(struct.pack(">hhih", 18, 99, 7, -1))
    assert struct.unpack(">ih", client.receive_frame()[:6]) == (7, ErrorCode.UNSUPPORTED_VERSION)
    client.versions()
    client.log_in(PLAIN, "alice", "secret")
    assert client.is_served


# --- failures ---


@pytest.mark.parametrize("mechanism", [PLAIN, SHA_256, SHA_512])
def test_unknown_users_and_wrong_passwords_get_one_answer(
    sasl: SaslBroker, where: str, mechanism: str
) -> None:
    texts = set()
    for user, password in (("alice", "wrong"), ("nobody", "secret")):
        with SaslClient(sasl.port(where)) as client:
            with pytest.raises(LoginFailed) as failure:
                client.log_in(mechanism, user, password)
            assert failure.value.code == FAILED
            texts.add(failure.value.text)
            client.must_be_closed()
    assert len(texts) == 1
    assert "alice" not in str(texts.pop())


def test_unknown_users_have_one_salt_on_all_workers(sasl: SaslBroker) -> None:
    def challenge(where: str, user: str) -> str:
        with SaslClient(sasl.port(where)) as client:
            client.handshake(SHA_256)
            first = client.token(b"n,,n=" + user.encode() + b",r=x")
            return bytes(first.auth_bytes).decode().partition(",s=")[2]

    for user in ("alice", "nobody"):
        seen = {challenge(where, user) for where in ("router", "router", "0", "1")}
        assert len(seen) == 1
    assert challenge("0", "nobody") != challenge("0", "nobody2")


@pytest.mark.parametrize("changed", [{"exp": 1}, {"sub": None}, {"iat": 1 << 36}])
def test_a_token_that_does_not_count(client: SaslClient, changed: dict[str, int | None]) -> None:
    client.handshake(TOKENS)
    token = signed(claims(now(), **changed))
    refusal = client.token(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
    assert (refusal.error_code, refusal.auth_bytes) == (0, b'{"status":"invalid_token"}')
    last = client.token(b"\x01")
    assert (last.error_code, last.error_message) == (FAILED, '{"status":"invalid_token"}')
    client.must_be_closed()


def test_a_token_of_another_issuer_does_not_count(client: SaslClient) -> None:
    token = signed(claims(now()), key=rsa_key("another"))
    client.handshake(TOKENS)
    assert client.token(f"n,,\x01auth=Bearer {token}\x01\x01".encode()).auth_bytes
    assert client.token(b"\x01").error_code == FAILED


def test_a_mechanism_that_is_not_enabled(client: SaslClient) -> None:
    answer = client.handshake("GSSAPI")
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == MECHANISMS
    client.must_be_closed()


def test_steps_out_of_order_fail(client: SaslClient) -> None:
    client.handshake(SHA_256)
    scram = ScramClient("alice", "secret", SHA_256)
    first = client.token(scram.first_message())
    assert first.error_code == 0
    answer = client.token(scram.first_message())  # instead of the last one
    assert answer.error_code == FAILED
    client.must_be_closed()


def test_a_token_before_the_mechanism_gets_a_reason(client: SaslClient) -> None:
    answer = client.token(b"\0alice\0secret")
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    client.must_be_closed()


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (MetadataRequest(topics=[]), 9),
        (FindCoordinatorRequest(key="g"), 3),
    ],
)
@pytest.mark.parametrize("after", ["nothing", "versions", "handshake", "first token"])
def test_nothing_else_is_served_before(
    client: SaslClient, request_: Message, version: int, after: str
) -> None:
    if after == "versions":
        client.versions()
    elif after in ("handshake", "first token"):
        client.handshake(SHA_256)
    if after == "first token":
        client.token(b"n,,n=alice,r=x")
    client.send(request_, version)
    client.must_be_closed()


def test_versions_are_told_once(client: SaslClient) -> None:
    client.versions()
    client.send(ApiVersionsRequest("a-test", "1"), 3)
    client.must_be_closed()


def test_a_second_handshake_is_too_much(client: SaslClient) -> None:
    client.handshake(SHA_256)
    client.send(SaslHandshakeRequest(SHA_512), 1)
    client.must_be_closed()


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">i", 524_289),
        struct.pack(">i", 0),
        struct.pack(">i", -1),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">ihhih", 40, 36, 2, 1, 500) + bytes(30),
        struct.pack(">ihhi", 8, 32766, 0, 1),
        struct.pack(">ihhih", 10, 32767, 0, 1, -1),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
@pytest.mark.parametrize("after", ["nothing", "handshake"])
def test_garbage_closes_the_connection(client: SaslClient, garbage: bytes, after: str) -> None:
    if after == "handshake":
        client.handshake(SHA_256)
    client.socket.sendall(garbage)
    client.must_be_closed()


def test_a_login_of_many_requests_is_cut_off(client: SaslClient) -> None:
    unsupported = struct.pack(">ihhih", 10, 18, 99, 7, -1)
    client.socket.sendall(unsupported * 1000)
    received = 0
    with contextlib.suppress(ConnectionError):
        while piece := client.socket.recv(65536):
            received += len(piece)
    assert received < 100 * 64


@pytest.mark.parametrize(("mechanism", "size"), [(PLAIN, 16_000), (TOKENS, 500_000)])
def test_a_large_token_is_read_and_refused(client: SaslClient, mechanism: str, size: int) -> None:
    client.handshake(mechanism)
    answer = client.token(b"\0alice\0" + b"x" * size)
    assert answer.error_code == FAILED


@pytest.mark.parametrize(
    ("mechanism", "size"),
    [("", 16_385), (PLAIN, 16_385), (SHA_256, 16_385), (SHA_512, 16_385), (TOKENS, 524_289)],
)
def test_no_more_is_waited_for_than_a_login_can_need(
    client: SaslClient, mechanism: str, size: int
) -> None:
    """A length alone is enough to refuse it: the rest may never come."""
    if mechanism:
        client.handshake(mechanism)
    client.socket.sendall(struct.pack(">i", size) + b"\0\x24")
    client.must_be_closed()


@pytest.mark.parametrize("api", TABLE, ids=repr)
def test_what_processes_ask_each_other_is_not_served_to_clients(
    client: SaslClient, api: PrivateApi[Any, Any]
) -> None:
    """Least of all to one that claims to be somebody else, in the middle of its requests."""
    client.log_in(SHA_256, "alice", "secret")
    assert client.is_served
    frame = PREAMBLE.request(OPERATOR) if api is PREAMBLE else private_frame(api.key, b"")
    client.socket.sendall(frame)
    client.send(DescribeUserScramCredentialsRequest(None), 0)
    client.must_be_closed()


# --- SaslHandshake v0: tokens without requests around them ---


def test_tokens_without_requests(client: SaslClient) -> None:
    assert client.handshake(SHA_256, 0).error_code == 0
    scram = ScramClient("alice", "secret", SHA_256)
    scram.process_server_first_message(client.raw_token(scram.first_message()))
    scram.process_server_final_message(client.raw_token(scram.final_message()))
    assert client.is_served


def test_a_short_token_without_a_request(sasl: SaslBroker, client: SaslClient) -> None:
    sasl.set_password("u", "p")
    client.handshake(PLAIN, 0)
    assert client.raw_token(b"\0u\0p") == b""
    assert client.is_served


def test_a_wrong_token_without_a_request_closes_the_connection(client: SaslClient) -> None:
    client.handshake(PLAIN, 0)
    client.send_frame(b"\0alice\0wrong")
    client.must_be_closed()


# --- several at once ---


def test_requests_sent_before_the_login_is_over_wait_for_it(client: SaslClient) -> None:
    """Kafka's clients wait for each answer; what one sends too early is not lost."""
    client.handshake(PLAIN)
    token = SaslAuthenticateRequest(b"\0alice\0secret")
    client.send(token, 2)
    client.send(MetadataRequest(topics=[]), 9)
    assert client.receive(token, 2, behind=1).error_code == 0
    assert client.receive(MetadataRequest(topics=[]), 9).cluster_id


def test_a_thousand_connections_that_never_log_in_keep_no_one_waiting(
    sasl: SaslBroker, where: str
) -> None:
    silent = [SaslClient(sasl.port(where), source="127.0.0.9") for _ in range(1000)]
    try:
        for number, each in enumerate(silent):
            if number % 3 == 1:
                each.send(SaslHandshakeRequest(SHA_256), 1)
            elif number % 3 == 2:
                each.socket.sendall(struct.pack(">i", 500_000) + bytes(1000))
        with sasl.log_in(where) as client:
            assert client.is_served
        first = silent[0].socket
        first.settimeout(30)
        assert first.recv(1) == b""  # it had ten seconds
    finally:
        for each in silent:
            each.socket.close()


# --- where clients do not log in ---


@pytest.mark.parametrize("place", ["router", "1"])
def test_where_clients_do_not_log_in_they_are_told_so(sasl: SaslBroker, place: str) -> None:
    with SaslClient(sasl.port(place, "PLAINTEXT")) as client:
        for version in (0, 1):
            assert client.handshake(SHA_256, version).error_code == ErrorCode.ILLEGAL_SASL_STATE
        for version in (0, 1, 2):
            assert client.token(b"x", version).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.is_served
