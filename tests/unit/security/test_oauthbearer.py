"""OAUTHBEARER: which tokens count, and what happens to the others."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.security.oauthbearer import (
    InvalidKeySet,
    OAuthBearerConversation,
    SigningKey,
    TokenRules,
    read_initial_message,
    read_key_set,
)
from moldau.broker.security.sasl import Accepted, Challenge, Rejected, Step
from tests.support.brokers.tokens import claims, ec_key, key_set, public_fields, rsa_key, signed

NOW = 1_800_000_000_000
RULES = TokenRules("https://issuer", frozenset({"kafka", "moldau"}))
GOOD = claims(NOW, iss="https://issuer", aud="kafka")


class Keys:
    def __init__(self, keys: Sequence[SigningKey]) -> None:
        self._keys = keys

    def named(self, key_id: str | None) -> Sequence[SigningKey]:
        return [key for key in self._keys if key_id in (None, key.key_id)]


KEYS = Keys(read_key_set(key_set()))


def message(token: str, authzid: str = "") -> bytes:
    return f"n,{authzid},\x01auth=Bearer {token}\x01\x01".encode()


def first_step(token: str, rules: TokenRules = RULES, now: int = NOW) -> Step:
    return OAuthBearerConversation(rules, KEYS).receive(message(token), now)


REFUSED = Challenge(b'{"status":"invalid_token"}')


@pytest.mark.parametrize(
    ("algorithm", "key", "key_id"),
    [
        ("RS256", rsa_key(), "rsa"),
        ("PS512", rsa_key(), "rsa"),
        ("ES256", ec_key(), "ec"),
        ("RS256", rsa_key(), None),
        ("ES256", ec_key(), None),
    ],
)
def test_a_signed_token_names_the_user(algorithm: str, key: Any, key_id: str | None) -> None:
    step = first_step(signed(GOOD, algorithm, key, key_id))
    assert step == Accepted("alice", expires_at=GOOD["exp"] * 1000)


@pytest.mark.parametrize(
    "changed",
    [
        {"exp": NOW // 1000 - 31},
        {"exp": None},
        {"exp": "soon"},
        {"exp": True},
        {"exp": 10**400},
        {"exp": float("nan")},
        {"iat": NOW // 1000 + 31},
        {"iat": None},
        {"nbf": NOW // 1000 + 31},
        {"iss": "https://other"},
        {"iss": None},
        {"aud": "other"},
        {"aud": ["other", "another"]},
        {"aud": None},
        {"aud": {"kafka": 1}},
        {"scope": 7},
        {"sub": ""},
        {"sub": " "},
        {"sub": 7},
        {"sub": None},
        {"sub": "x" * 2000},
    ],
)
def test_claims_that_do_not_count(changed: dict[str, Any]) -> None:
    token = signed(
        {name: value for name, value in {**GOOD, **changed}.items() if value is not None}
    )
    login = OAuthBearerConversation(RULES, KEYS)
    assert login.receive(message(token), NOW) == REFUSED
    last = login.receive(b"\x01", NOW)
    assert isinstance(last, Rejected)
    assert last.message == '{"status":"invalid_token"}'


@pytest.mark.parametrize(
    "changed",
    [
        {"exp": NOW // 1000 - 29},
        {"iat": NOW // 1000 + 29},
        {"nbf": NOW // 1000 + 29},
        {"aud": ["other", "moldau"]},
        {"scope": "read write"},
        {"scope": ["read", "write"]},
    ],
)
def test_claims_that_do(changed: dict[str, Any]) -> None:
    step = first_step(signed({**GOOD, **changed}))
    assert isinstance(step, Accepted)
    assert step.expires_at > NOW


def test_the_names_of_claims_can_be_set() -> None:
    rules = TokenRules(sub_claim_name="client_id", scope_claim_name="scp")
    assert first_step(signed(claims(NOW, client_id="bob", scp=["a"])), rules) == Accepted(
        "bob", expires_at=GOOD["exp"] * 1000
    )
    assert first_step(signed(claims(NOW, client_id="bob", scp=[1])), rules) == REFUSED


def _unsigned() -> str:
    def part(fields: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(fields).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none'})}.{part(GOOD)}."


def test_a_token_that_is_not_signed_does_not_count() -> None:
    assert first_step(_unsigned()) == REFUSED


def test_a_public_key_is_never_a_shared_secret() -> None:
    """The classic confusion: a token signed with HMAC, with the public key as the secret."""
    secret = public_fields(rsa_key(), "rsa")["n"]
    assert first_step(signed(GOOD, "HS256", secret)) == REFUSED
    oct_key = {"kty": "oct", "k": base64.urlsafe_b64encode(b"x" * 32).decode(), "kid": "rsa"}
    with pytest.raises(InvalidKeySet):
        read_key_set({"keys": [oct_key]})


@pytest.mark.parametrize(
    ("key", "key_id"),
    [(rsa_key("other"), "rsa"), (rsa_key("other"), "unknown"), (rsa_key("other"), None)],
)
def test_a_token_of_another_key_does_not_count(key: Any, key_id: str | None) -> None:
    assert first_step(signed(GOOD, key=key, key_id=key_id)) == REFUSED


def test_a_key_is_used_with_its_algorithm_only() -> None:
    for_pss = Keys(read_key_set({"keys": [public_fields(rsa_key(), "rsa", alg="PS256")]}))
    for token, is_good in ((signed(GOOD, "PS256"), True), (signed(GOOD, "RS256"), False)):
        step = OAuthBearerConversation(RULES, for_pss).receive(message(token), NOW)
        assert isinstance(step, Accepted) == is_good


def test_a_changed_token_does_not_count() -> None:
    head, _, signature = signed(GOOD).split(".")
    claimed = base64.urlsafe_b64encode(json.dumps({**GOOD, "sub": "admin"}).encode())
    assert first_step(".".join((head, claimed.rstrip(b"=").decode(), signature))) == REFUSED


def test_an_authorization_id_has_to_be_the_user() -> None:
    token = signed(GOOD)
    for authzid, is_good in (("a=alice", True), ("a=admin", False)):
        login = OAuthBearerConversation(RULES, KEYS)
        step = login.receive(message(token, authzid), NOW)
        assert isinstance(step, Accepted) == is_good


def test_extensions_are_ignored() -> None:
    token = signed(GOOD)
    text = f"n,,\x01host=h\x01auth=Bearer {token}\x01traceId=7\x01\x01".encode()
    assert read_initial_message(text) == (None, token)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic x\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer x",
        b"n,,\x01auth=Bearer x\x01auth=Bearer y\x01\x01",
        b"n,,\x01host=h\x01\x01",
        b"n,,\x01auth=Bearer x\x01a b=1\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer x\x01\x01",
        b"\xff",
    ],
)
def test_another_message_is_rejected(text: bytes) -> None:
    assert isinstance(OAuthBearerConversation(RULES, KEYS).receive(text, NOW), Rejected)


PIECES = st.sampled_from(
    [b"n,,", b"\x01", b"auth=Bearer ", b".", b"a=b", b"e30", signed(GOOD).encode(), b"a=alice"]
) | st.binary(max_size=4)


@given(st.lists(PIECES, max_size=10).map(b"".join))
def test_any_bytes_are_rejected_or_refused(text: bytes) -> None:
    step = OAuthBearerConversation(RULES, KEYS).receive(text, NOW)
    assert isinstance(step, Rejected | Challenge | Accepted)
    if isinstance(step, Accepted):
        assert signed(GOOD).encode() in text


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["keys", "kty", "kid", "alg", "use"]), inner, max_size=4
            )
        ),
        max_leaves=8,
    )
)
def test_any_document_is_a_key_set_or_is_not(document: Any) -> None:
    with contextlib.suppress(InvalidKeySet):
        assert read_key_set(document)
