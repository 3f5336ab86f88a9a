"""What a client may send until it has logged in, the same at workers and routers."""

from __future__ import annotations

import random

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.security.identity import Identity
from moldau.broker.security.login_steps import (
    MAX_REQUESTS,
    LoginRefused,
    LoginState,
    LoginSteps,
    MechanismChosen,
    Reply,
    Token,
)
from moldau.broker.settings.sasl import SaslSettings
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import LENGTH_SIZE, request_frame
from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.messages.metadata import MetadataRequest
from moldau.broker.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from moldau.broker.wire.messages.sasl_handshake import SaslHandshakeRequest
from moldau.broker.wire.primitives import MalformedMessage
from moldau.broker.wire.schema import Message

SETTINGS = SaslSettings(mechanisms=["PLAIN", "SCRAM-SHA-256"])
ALICE = Identity("User:alice", mechanism="PLAIN")


def frame(key: ApiKey, version: int, message: Message) -> bytes:
    return request_frame(APIS[key], version, 7, "c", message)[LENGTH_SIZE:]


VERSIONS = frame(ApiKey.API_VERSIONS, 3, ApiVersionsRequest("librdkafka", "2.3"))
HANDSHAKE = frame(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
RAW_HANDSHAKE = frame(ApiKey.SASL_HANDSHAKE, 0, SaslHandshakeRequest("PLAIN"))
AUTHENTICATE = frame(ApiKey.SASL_AUTHENTICATE, 1, SaslAuthenticateRequest(b"\0a\0b"))
METADATA = frame(ApiKey.METADATA, 1, MetadataRequest())


def login(*frames: bytes, has_telemetry: bool = False) -> LoginSteps:
    steps = LoginSteps(SETTINGS, has_telemetry=has_telemetry)
    for each in frames:
        steps.receive(each)
    return steps


def test_a_login_goes_from_versions_to_tokens() -> None:
    steps = login(has_telemetry=True)
    answer = steps.receive(VERSIONS)
    assert isinstance(answer, Reply)
    assert (answer.closes, answer.software) == (False, ("librdkafka", "2.3"))
    assert steps.state is LoginState.HANDSHAKE
    assert isinstance(steps.receive(HANDSHAKE), MechanismChosen)
    assert (steps.state, steps.mechanism) == (LoginState.TOKENS, "PLAIN")
    token = steps.receive(AUTHENTICATE)
    assert isinstance(token, Token)
    assert token.token == b"\0a\0b"


def test_without_telemetry_nobody_asks_for_the_software() -> None:
    answer = login().receive(VERSIONS)
    assert isinstance(answer, Reply)
    assert answer.software is None


def test_after_the_first_handshake_tokens_have_no_request_around_them() -> None:
    steps = login(RAW_HANDSHAKE)
    assert steps.state is LoginState.RAW
    assert steps.receive(b"\0a\0b") == Token(steps.receive(b"x").header, b"\0a\0b")


def test_a_version_that_is_not_served_is_answered_and_does_not_end_the_login() -> None:
    steps = login()
    answer = steps.receive(b"\0\x12\0\x63" + VERSIONS[4:])
    assert isinstance(answer, Reply)
    assert (answer.message, steps.state) == (None, LoginState.VERSIONS)


def test_a_mechanism_that_is_not_served_closes_the_connection() -> None:
    answer = login().receive(frame(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("OAUTHBEARER")))
    assert isinstance(answer, Reply)
    assert answer.closes
    assert answer.message.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM  # type: ignore[union-attr]


@pytest.mark.parametrize("before", [(), (VERSIONS,)])
def test_a_token_before_the_handshake_closes_the_connection(before: tuple[bytes, ...]) -> None:
    answer = login(*before).receive(AUTHENTICATE)
    assert isinstance(answer, Reply)
    assert answer.closes
    assert answer.message.error_code == ErrorCode.ILLEGAL_SASL_STATE  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("before", "sent"),
    [
        ((), METADATA),
        ((VERSIONS,), VERSIONS),
        ((HANDSHAKE,), HANDSHAKE),
        ((HANDSHAKE,), METADATA),
        ((HANDSHAKE,), b"\x7f\xff\0\0\0\0\0\x01\xff\xff"),  # a private API
    ],
)
def test_any_other_request_is_refused(before: tuple[bytes, ...], sent: bytes) -> None:
    with pytest.raises(LoginRefused):
        login(*before).receive(sent)


def test_a_login_has_so_many_requests_of_such_a_size() -> None:
    steps = login(HANDSHAKE)
    for _ in range(MAX_REQUESTS - 1):
        steps.receive(AUTHENTICATE)
    with pytest.raises(LoginRefused, match="too many"):
        steps.receive(AUTHENTICATE)
    with pytest.raises(LoginRefused, match="too large"):
        login(HANDSHAKE).receive(bytes(SETTINGS.max_receive_bytes + 1))


def test_nothing_is_served_after_a_login() -> None:
    steps = login(HANDSHAKE)
    steps.state = LoginState.DONE
    for each in (HANDSHAKE, METADATA, VERSIONS):
        with pytest.raises(LoginRefused):
            steps.receive(each)


def test_a_session_keeps_its_mechanism_and_its_principal() -> None:
    steps = login(HANDSHAKE)
    assert steps.mechanism_fault(Identity()) is None
    assert steps.principal_fault(Identity(), "bob") is None
    steps.begin_again()
    steps.receive(HANDSHAKE)
    assert steps.mechanism_fault(ALICE) is None
    assert steps.principal_fault(ALICE, "alice") is None
    assert "from User.alice: User.bob" in (steps.principal_fault(ALICE, "bob") or "")
    steps.begin_again()
    steps.receive(frame(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("SCRAM-SHA-256")))
    assert "'SCRAM-SHA-256'" in (steps.mechanism_fault(ALICE) or "")


def test_garbage_is_refused_and_never_a_token_in_front_of_a_handshake() -> None:
    rng = random.Random(5)
    good = [VERSIONS, HANDSHAKE, AUTHENTICATE, METADATA]
    for _ in range(3000):
        steps = login()
        for _ in range(4):
            sent = bytearray(rng.choice(good))
            for _ in range(rng.randrange(3)):
                sent[rng.randrange(len(sent))] = rng.randrange(256)
            before = steps.state
            try:
                found = steps.receive(sent[: rng.randrange(1, len(sent) + 1)])
            except (LoginRefused, MalformedMessage):
                break
            if isinstance(found, Token):
                assert before in (LoginState.TOKENS, LoginState.RAW)
