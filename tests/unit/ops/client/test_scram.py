"""The client's side of SCRAM, against the example of RFC 7677 and servers that misbehave."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.security.sasl import Accepted, Challenge, Mechanism
from moldau.broker.security.scram import KnownCredential, ScramConversation, credential_from
from moldau.ops.client.scram import HASHES, ScramClient, ScramError, salted_password

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def example() -> ScramClient:
    return ScramClient("SCRAM-SHA-256", "user", "pencil", NONCE)


def test_the_example_of_rfc_7677() -> None:
    client = example()
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.final(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    client.verify(SERVER_FINAL)


@pytest.mark.parametrize("mechanism", HASHES)
def test_a_server_with_the_same_password_accepts_and_is_accepted(mechanism: str) -> None:
    client = ScramClient(mechanism, "a,b=c", "päß")
    first = client.first().decode()
    assert first.startswith("n,,n=a=2Cb=3Dc,r=")
    bare = first.removeprefix("n,,")
    nonce = bare.rpartition("r=")[2] + "more"
    challenge = f"r={nonce},s={base64.b64encode(b'salt').decode()},i=4096"
    final = client.final(challenge.encode()).decode()
    without_proof, _, proof = final.rpartition(",p=")

    digest = HASHES[mechanism]
    salted = salted_password(mechanism, "päß", b"salt", 4096)
    client_key = hmac.digest(salted, b"Client Key", digest)
    signed = f"{bare},{challenge},{without_proof}".encode()
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
    assert bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True)) == (
        client_key
    )
    signature = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
    client.verify(b"v=" + base64.b64encode(signature))


def test_a_server_that_does_not_know_the_password_is_refused() -> None:
    client = example()
    client.final(SERVER_FIRST)
    with pytest.raises(ScramError, match="not the broker it claims to be"):
        client.verify(b"v=" + base64.b64encode(bytes(32)))


def test_nothing_is_verified_before_the_challenge() -> None:
    with pytest.raises(ScramError):
        example().verify(b"v=")


@pytest.mark.parametrize(
    ("challenge", "why"),
    [
        (b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (SERVER_FIRST.replace(b"i=4096", b"i=4095"), "4095 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=999999999"), "iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=9999999999"), "iterations"),
        (SERVER_FIRST.replace(b",i=4096", b""), "iterations"),
        (SERVER_FIRST.replace(b"W22Z", b"W2!Z"), "base64"),
        (b"m=new," + SERVER_FIRST, "extension"),
        (b"e=other-error", "other-error"),
        (b"\xff", "not text"),
        (b"", "not one of SCRAM"),
    ],
)
def test_a_challenge_that_breaks_the_protocol_is_refused(challenge: bytes, why: str) -> None:
    with pytest.raises(ScramError, match=why):
        example().final(challenge)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_challenge_or_refused(challenge: bytes) -> None:
    client = example()
    with pytest.raises(ScramError):
        client.final(challenge)
    with pytest.raises(ScramError):
        client.verify(challenge)


@pytest.mark.parametrize("mechanism", HASHES)
@pytest.mark.parametrize(("password", "accepted"), [("sécret", True), ("secret", False)])
def test_with_the_brokers_own_side(mechanism: str, password: str, accepted: bool) -> None:
    kind = Mechanism(mechanism)
    salted = salted_password(mechanism, "sécret", b"salt", 4096)
    known = KnownCredential(credential_from(kind, b"salt", 4096, salted), 1)
    server = ScramConversation(kind, lambda user: known, "server-nonce")
    client = ScramClient(mechanism, "al,ice", password)
    challenge = server.receive(client.first(), 0)
    assert isinstance(challenge, Challenge)
    outcome = server.receive(client.final(challenge.token), 0)
    assert isinstance(outcome, Accepted) is accepted
    if isinstance(outcome, Accepted):
        assert outcome.user == "al,ice"
        client.verify(outcome.token)


@pytest.mark.parametrize("mechanism", HASHES)
def test_a_delegation_token_logs_in_as_its_owner(mechanism: str) -> None:
    kind = Mechanism(mechanism)
    salted = salted_password(mechanism, "hmac", b"salt", 4096)
    known = KnownCredential(credential_from(kind, b"salt", 4096, salted), 0, "alice", 7)
    stranger = KnownCredential(credential_from(kind, b"salt", 4096, b"x" * len(salted)), 0)
    server = ScramConversation(kind, lambda _: stranger, "server-nonce", lambda _: known)
    client = ScramClient(mechanism, "token-id", "hmac", is_token=True)
    challenge = server.receive(client.first(), 0)
    assert isinstance(challenge, Challenge)
    outcome = server.receive(client.final(challenge.token), 0)
    assert isinstance(outcome, Accepted)
    assert (outcome.user, outcome.token_id, outcome.expires_at) == ("alice", "token-id", 7)
    client.verify(outcome.token)
