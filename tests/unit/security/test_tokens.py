"""Delegation tokens: how long they live, who may do what, and what a login shows."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.security.identity import NEVER, OPERATOR, EndedSessions, Identity
from moldau.broker.security.sasl import Accepted, Challenge, Mechanism, Rejected
from moldau.broker.security.scram import KnownCredential, ScramConversation, Shape, no_credential
from moldau.broker.security.tokens import (
    ITERATIONS,
    MAX_RENEWERS,
    MAX_TIME,
    MECHANISMS,
    Lifetimes,
    Token,
    TokenKey,
    check_allowed,
    checked_principals,
    expired,
    first_times,
    new_id,
    owner_of,
    password_of,
    renewed,
)
from tests.support.raw.delegation import TokenScramClient

NOW = 1_800_000_000_000
LIFETIMES = Lifetimes(7 * 86_400_000, 86_400_000)
KEY = TokenKey("secret")
ALICE = Identity("User:alice", mechanism="SCRAM-SHA-256")
BOB, CAROL = Identity("User:bob"), Identity("User:carol")

MOMENTS = st.integers(0, MAX_TIME)
PERIODS = st.integers(-(1 << 63), MAX_TIME)
LIVES = st.builds(Lifetimes, st.integers(1, MAX_TIME), st.integers(1, MAX_TIME))


def token(expires_at: int = NOW + 1000, max_at: int = NOW + 5000, **fields: Any) -> Token:
    given = {"credentials": {}, **fields}
    return Token(
        "User:alice",
        "User:dave",
        ("User:bob",),
        NOW,
        expires_at,
        max_at,
        KEY.fingerprint,
        **given,
    )


def code_of(error: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return error.value.code


# --- lifetimes ---


@given(LIVES, PERIODS, MOMENTS)
def test_a_new_token_ends_within_both_limits(lives: Lifetimes, asked: int, now: int) -> None:
    expires_at, max_at = first_times(lives, asked, now)
    assert now <= expires_at <= max_at <= MAX_TIME
    assert max_at <= now + lives.max_ms
    assert expires_at <= now + lives.renew_ms
    if asked > 0:
        assert max_at <= now + asked
    else:
        assert (expires_at, max_at) == first_times(lives, lives.max_ms, now)


@given(LIVES, PERIODS, MOMENTS, MOMENTS, MOMENTS)
def test_no_renewal_outlives_the_token(
    lives: Lifetimes, period: int, now: int, expires_at: int, max_at: int
) -> None:
    old = token(expires_at, max_at)
    if old.is_expired(now):
        with pytest.raises(KafkaError) as refusal:
            renewed(old, ALICE, lives, period, now)
        assert code_of(refusal) == ErrorCode.DELEGATION_TOKEN_EXPIRED
        return
    new = renewed(old, ALICE, lives, period, now)
    assert now <= new.expires_at <= new.max_at == old.max_at
    assert new.expires_at <= now + lives.renew_ms
    if period > 0:
        assert new.expires_at <= now + period
    for field in ("owner", "requester", "renewers", "issued_at", "key", "credentials"):
        assert getattr(new, field) == getattr(old, field)


@given(PERIODS, MOMENTS, MOMENTS, MOMENTS)
def test_expiring_never_extends_beyond_the_end(
    period: int, now: int, expires_at: int, max_at: int
) -> None:
    old = token(expires_at, max_at)
    if period < 0:
        assert expired(old, ALICE, period, now) is None
    elif old.is_expired(now):
        with pytest.raises(KafkaError):
            expired(old, ALICE, period, now)
    else:
        new = expired(old, ALICE, period, now)
        assert new is not None
        assert new.expires_at == min(now + period, max_at)


@given(MOMENTS, MOMENTS, MOMENTS)
def test_what_may_log_in_has_time_left(now: int, expires_at: int, max_at: int) -> None:
    """A session of no time would be one without end: 0 says that to clients."""
    one = token(expires_at, max_at)
    assert one.may_log_in(now) == (expires_at > now and max_at > now)
    if one.may_log_in(now):
        assert not one.is_expired(now)


# --- who may ---


def test_only_the_owner_renewers_and_the_operator_change_a_token() -> None:
    one = token()
    for who in (ALICE, BOB, OPERATOR):
        assert renewed(one, who, LIFETIMES, -1, NOW).expires_at == one.max_at
        assert expired(one, who, -1, NOW) is None
    for who in (CAROL, Identity("User:dave")):  # the requester is neither
        with pytest.raises(KafkaError) as refusal:
            renewed(one, who, LIFETIMES, -1, NOW)
        assert code_of(refusal) == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        with pytest.raises(KafkaError) as refusal:
            expired(one, who, -1, NOW)
        assert code_of(refusal) == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


def test_codes_come_in_kafkas_order() -> None:
    """A stranger hears EXPIRED when it renews a token that is over, MISMATCH otherwise."""
    over = token(NOW - 1)
    with pytest.raises(KafkaError) as refusal:
        renewed(over, CAROL, LIFETIMES, -1, NOW)
    assert code_of(refusal) == ErrorCode.DELEGATION_TOKEN_EXPIRED
    with pytest.raises(KafkaError) as refusal:
        expired(over, CAROL, 5, NOW)
    assert code_of(refusal) == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert expired(over, ALICE, -1, NOW) is None


@pytest.mark.parametrize(
    ("identity", "is_allowed"),
    [
        (Identity(), False),  # PLAINTEXT, or TLS without a certificate
        (Identity("User:CN=alice"), True),
        (Identity("User:ANONYMOUS", mechanism="PLAIN"), True),  # a user of that name
        (ALICE, True),
        (Identity("User:alice", mechanism="SCRAM-SHA-256", token="abc"), False),
        (OPERATOR, True),
    ],
)
def test_who_has_not_proved_who_it_is_gets_nothing(identity: Identity, is_allowed: bool) -> None:
    if is_allowed:
        check_allowed(identity)
        return
    with pytest.raises(KafkaError) as refusal:
        check_allowed(identity)
    assert code_of(refusal) == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_the_owner_is_who_asks_unless_another_is_named() -> None:
    assert owner_of(ALICE, None, None) == owner_of(ALICE, "Group", "") == "User:alice"
    assert owner_of(ALICE, "User", "bob") == "User:bob"
    assert owner_of(ALICE, None, "bob") == ":bob"


def test_owner_and_renewers_are_users_and_not_too_many() -> None:
    assert checked_principals("User:a", [("User", "b"), ("User", "b"), ("User", "c:d")]) == (
        "User:b",
        "User:c:d",
    )
    many = [("User", str(number)) for number in range(MAX_RENEWERS + 1)]
    assert len(checked_principals("User:a", many[1:])) == MAX_RENEWERS
    wrong = [
        ("Group:a", [], ErrorCode.INVALID_PRINCIPAL_TYPE),
        (":a", [], ErrorCode.INVALID_PRINCIPAL_TYPE),
        ("User:a", [("Group", "b")], ErrorCode.INVALID_PRINCIPAL_TYPE),
        ("User:a", [("user", "b")], ErrorCode.INVALID_PRINCIPAL_TYPE),
        ("User:a", many, ErrorCode.INVALID_REQUEST),
        ("User:a", [("User", "b" * 1025)], ErrorCode.INVALID_REQUEST),
        ("User:" + "a" * 1025, [], ErrorCode.INVALID_REQUEST),
        ("User:a\0", [], ErrorCode.INVALID_REQUEST),
    ]
    for owner, renewers, code in wrong:
        with pytest.raises(KafkaError) as refusal:
            checked_principals(owner, renewers)
        assert code_of(refusal) == code, (owner, renewers)


def test_ids_are_as_kafkas() -> None:
    made = {new_id() for _ in range(500)}
    assert len(made) == 500
    assert all(len(each) == 22 and not each.startswith("-") for each in made)
    assert all(len(base64.urlsafe_b64decode(each + "==")) == 16 for each in made)


# --- logging in ---


def conversation(mechanism: Mechanism, tokens: dict[str, Token]) -> ScramConversation:
    def find(user: str) -> KnownCredential:
        return KnownCredential(no_credential(mechanism, b"x", user, Shape(24, 4096)), 0)

    def find_token(token_id: str) -> KnownCredential:
        found = tokens.get(token_id)
        credential = KEY.credential(mechanism, token_id, found)
        if found is None:
            return KnownCredential(credential, 0)
        return KnownCredential(credential, 0, "alice", found.expires_at)

    return ScramConversation(mechanism, find, "nonce", find_token)


def log_in(
    mechanism: Mechanism,
    tokens: dict[str, Token],
    token_id: str,
    password: str,
    extension: bytes = b"tokenauth=true",
) -> tuple[Any, Any]:
    client = TokenScramClient(token_id, password, mechanism)
    client.extension = extension
    server = conversation(mechanism, tokens)
    first = server.receive(client.first_message(), NOW)
    assert isinstance(first, Challenge)
    client.process_server_first_message(first.token)
    last = server.receive(client.final_message(), NOW)
    if isinstance(last, Accepted):
        client.process_server_final_message(last.token)
    return first, last


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_hmac_logs_in_as_the_owner(mechanism: Mechanism) -> None:
    made = token(credentials=KEY.credentials("some-id"))
    password = base64.b64encode(
        hmac.new(b"secret", b"some-id", hashlib.sha512).digest()  # as Kafka makes it
    ).decode()
    assert password == password_of(KEY.hmac("some-id"))
    for extension in (b"tokenauth=true", b"tokenauth=TRUE", b"x=1,tokenauth=True"):
        _, last = log_in(mechanism, {"some-id": made}, "some-id", password, extension)
        assert isinstance(last, Accepted)
        assert (last.user, last.token_id, last.expires_at, last.revision) == (
            "alice",
            "some-id",
            made.expires_at,
            0,
        )
    for extension in (b"tokenauth=false", b"tokenauth=1", b"x=tokenauth"):
        _, last = log_in(mechanism, {"some-id": made}, "some-id", password, extension)
        assert isinstance(last, Rejected)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_challenge_does_not_show_whether_there_is_such_a_token(mechanism: Mechanism) -> None:
    made = {"some-id": token(credentials=KEY.credentials("some-id"))}
    there, wrong = log_in(mechanism, made, "some-id", "wrong")
    gone, unknown = log_in(mechanism, {}, "some-id", password_of(KEY.hmac("some-id")))

    def salt_and_rounds(step: Challenge) -> list[bytes]:
        return step.token.split(b",")[1:]

    assert salt_and_rounds(there) == salt_and_rounds(gone)
    assert salt_and_rounds(there)[1] == b"i=%d" % ITERATIONS
    other, _ = log_in(mechanism, made, "other-id", "wrong")
    assert salt_and_rounds(there) != salt_and_rounds(other)
    assert len(other.token) == len(there.token)
    assert isinstance(wrong, Rejected)
    assert isinstance(unknown, Rejected)
    assert (wrong.reason, wrong.message) == (unknown.reason, unknown.message)


def test_another_key_has_other_hmacs_salts_and_fingerprints() -> None:
    other = TokenKey("another")
    assert other.hmac("x") != KEY.hmac("x")
    assert other.fingerprint != KEY.fingerprint
    assert other.salt(MECHANISMS[0], "x") != KEY.salt(MECHANISMS[0], "x")
    assert KEY.salt(MECHANISMS[0], "x") != KEY.salt(MECHANISMS[1], "x")


def test_sessions_of_tokens_end_with_them_and_not_with_the_users_password() -> None:
    by_token = Identity("User:alice", token="one", expires_at=NEVER)
    by_password = Identity("User:alice", revision=7)
    assert EndedSessions(tokens=frozenset({"one"})).concerns(by_token)
    assert not EndedSessions(tokens=frozenset({"two"})).concerns(by_token)
    assert not EndedSessions(tokens=frozenset({"one"})).concerns(by_password)
    assert not EndedSessions({"alice": 8}).concerns(by_token)
    assert EndedSessions({"alice": 8}).concerns(by_password)
