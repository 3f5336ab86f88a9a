"""SCRAM against the RFC's example, an independent client, and any bytes."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.net.sasl.scram import ScramClient

from moldau.broker.security.accounts import Account, Looks
from moldau.broker.security.sasl import Accepted, Challenge, Mechanism, Rejected
from moldau.broker.security.scram import (
    KnownCredential,
    ScramConversation,
    ScramCredential,
    Shape,
    credential_from,
    is_password,
    no_credential,
    read_client_first,
    salted_password,
    shape_of,
)

SHA_256, SHA_512 = Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
ROUNDS = 4096
NOW = 1_800_000_000_000


def credential(mechanism: Mechanism, password: str) -> ScramCredential:
    salted = salted_password(mechanism, password, SALT, ROUNDS)
    return credential_from(mechanism, SALT, ROUNDS, salted)


PENCIL = {mechanism: credential(mechanism, "pencil") for mechanism in (SHA_256, SHA_512)}


def conversation(mechanism: Mechanism = SHA_256, nonce: str = "server") -> ScramConversation:
    def find(user: str) -> KnownCredential:
        if user in ("user", "a,b=c", "=2C"):
            return KnownCredential(PENCIL[mechanism], 7)
        return KnownCredential(no_credential(mechanism, b"secret", user, Shape(16, 4096)), 0)

    return ScramConversation(mechanism, find, nonce)


def test_the_example_of_rfc_7677() -> None:
    login = conversation(nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = login.receive(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", NOW)
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert first == Challenge(b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    proof = b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    last = login.receive(b"c=biws,r=" + nonce + b",p=" + proof, NOW)
    verifier = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert last == Accepted("user", verifier, revision=7)


def log_in(mechanism: Mechanism, user: str, password: str) -> tuple[Any, Any]:
    """Log in with kafka-python's client; returns the first answer and the last."""
    client = ScramClient(user, password, mechanism)
    server = conversation(mechanism)
    first = server.receive(client.first_message(), NOW)
    assert isinstance(first, Challenge)
    client.process_server_first_message(first.token)
    last = server.receive(client.final_message(), NOW)
    if isinstance(last, Accepted):
        client.process_server_final_message(last.token)
    return first, last


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_a_client_and_the_server_know_each_other(mechanism: Mechanism) -> None:
    _, last = log_in(mechanism, "user", "pencil")
    assert isinstance(last, Accepted)


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
@pytest.mark.parametrize("user", ["user", "nobody"])
def test_unknown_users_and_wrong_passwords_fail_in_the_second_step_alike(
    mechanism: Mechanism, user: str
) -> None:
    _, last = log_in(mechanism, user, "pen")
    assert last == Rejected("unknown user or wrong password", user)


SHAPE = Shape(16, 4096)


def test_an_unknown_user_has_one_salt() -> None:
    salts = {
        name: {no_credential(SHA_256, b"secret", name, SHAPE) for _ in range(3)}
        for name in ("one", "two", "three", "four", "five")
    }
    assert all(len(found) == 1 for found in salts.values())
    assert len({found.pop().salt for found in salts.values()}) == 5
    other = no_credential(SHA_256, b"another secret", "one", SHAPE)
    assert other != no_credential(SHA_256, b"secret", "one", SHAPE)


def kafkas_salt() -> bytes:
    """A salt as Kafka's tools make it: a number of 130 bits, with the digits 0 to z."""
    number, digits = secrets.randbits(130), ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits.encode()


def with_salt(salt: bytes, iterations: int = 4096) -> ScramCredential:
    return ScramCredential(salt, iterations, b"stored", b"server")


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
@pytest.mark.parametrize(
    "make",
    [kafkas_salt, lambda: secrets.token_bytes(32), lambda: secrets.token_hex(16).encode(),
     lambda: secrets.token_urlsafe(24).encode()],
)  # fmt: skip
def test_the_salt_of_an_unknown_user_looks_like_others(
    mechanism: Mechanism, make: Callable[[], bytes]
) -> None:
    """What a salt is made of tells which tool made it: an unknown user must not be alone."""

    def looks(salts: list[bytes]) -> tuple[set[int], set[int], bool]:
        first_of_26 = {salt[0] for salt in salts if len(salt) == 26}
        letters = {letter for salt in salts for letter in salt}
        return {len(salt) for salt in salts} & {16, 24, 25, 26, 32}, first_of_26, max(letters) < 128

    real = [make() for _ in range(2000)]
    false = [
        no_credential(mechanism, b"secret", str(name), shape_of(with_salt(salt))).salt
        for name, salt in enumerate(real)
    ]
    assert looks(real) == looks(false)
    assert {letter for salt in real for letter in salt} == {
        letter for salt in false for letter in salt
    }
    assert len(set(false)) == len(false)


def test_an_unknown_user_looks_like_one_of_those_that_exist() -> None:
    """This holds for both mechanisms, as often as there are users like it, and for good."""
    accounts = {
        f"user-{number}": Account(
            {SHA_256: with_salt(bytes(200 + number % 7), 4096 + number % 10),
             SHA_512: with_salt(bytes(100 + number % 7), 5096 + number % 10)}, 1, 1,
        )
        for number in range(300)
    }  # fmt: skip
    looks = Looks(accounts, b"secret")
    seen: dict[int, int] = {}
    for number in range(2000):
        one, other = (looks.shape(each, f"no-{number}") for each in (SHA_256, SHA_512))
        assert (one.salt_size - 100, one.iterations + 1000) == (other.salt_size, other.iterations)
        seen[one.iterations] = seen.get(one.iterations, 0) + 1
    assert sorted(seen) == list(range(4096, 4106))
    assert max(seen.values()) < 6 * min(seen.values())

    more = Looks({**accounts, "another": Account({SHA_256: with_salt(b"x")}, 1, 1)}, b"secret")
    same = [looks.shape(SHA_256, f"no-{n}") == more.shape(SHA_256, f"no-{n}") for n in range(500)]
    assert same.count(True) > 450


def test_a_password_of_an_unknown_user_is_checked_like_that_of_one_that_exists() -> None:
    accounts = {
        f"user-{number}": Account({mechanism: with_salt(b"x", 4096)}, 1, 1)
        for number in range(200)
        for mechanism in [SHA_256 if number % 2 else SHA_512]
    }
    looks = Looks(accounts, b"secret")
    seen = [looks.preferred(f"no-{number}") for number in range(400)]
    assert 50 < seen.count(SHA_512) < 350
    assert Looks({}, b"secret").preferred("no") is SHA_256


def test_passwords_are_checked_against_the_stored_key() -> None:
    assert is_password(SHA_512, "pencil", PENCIL[SHA_512])
    assert not is_password(SHA_512, "Pencil", PENCIL[SHA_512])
    assert not is_password(SHA_256, "pencil", no_credential(SHA_256, b"", "x", Shape(16, 4096)))


@pytest.mark.parametrize(
    ("name", "user"), [(b"a=2Cb=3Dc", "a,b=c"), (b"=3D2C", "=2C"), ("ž".encode(), "ž")]
)
def test_names_are_escaped(name: bytes, user: str) -> None:
    assert read_client_first(b"n,,n=" + name + b",r=x").user == user
    assert read_client_first(b"y,a=" + name + b",n=" + name + b",r=x").header[:2] == "y,"


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=user",
        b"n,,n=,r=x",
        b"n,,r=x,n=user",
        b"n,,n=us=er,r=x",
        b"n,,n=us=2cer,r=x",
        b"n,,n=us\0er,r=x",
        b"n,,n=user,r=",
        b"n,,n=user,r=\x7f",
        b"n,,n=user,r=" + b"x" * 2000,
        b"n,,n=" + b"x" * 2000 + b",r=x",
        b"n,,n=user,r=x,broken",
        b"n,,m=ext,n=user,r=x",
        b"n,a=other,n=user,r=x",
        b"n,user,n=user,r=x",
        b"x,,n=user,r=x",
        b"p=tls-unique,,n=user,r=x",
        b"n,,n=user,r=x,tokenauth=true",
        b"\xff,,n=user,r=x",
    ],
)
def test_a_first_message_that_is_none_is_rejected(token: bytes) -> None:
    assert isinstance(conversation().receive(token, NOW), Rejected)


def test_extensions_that_are_not_known_are_ignored() -> None:
    assert isinstance(conversation().receive(b"n,,n=user,r=x,q=1,foo=a=b", NOW), Challenge)


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"c=biws,r=xserver",
        b"c=biws,r=x,p=AAAA",
        b"c=biws,r=xserverx,p=AAAA",
        b"c=eSws,r=xserver,p=AAAA",
        b"c=biws,r=xserver,p=AAAA",
        b"c=biws,r=xserver,p=",
        b"c=biws,r=xserver,p=!!!!",
        b"c=biws,r=xserver,p=" + base64.b64encode(bytes(31)),
        b"c=biws,r=xserver,p=" + base64.b64encode(bytes(32)),
        b"r=xserver,c=biws,p=" + base64.b64encode(bytes(32)),
        b"c=biws,r=xserver,broken,p=" + base64.b64encode(bytes(32)),
        b"n,,n=user,r=x",
    ],
)
def test_a_last_message_that_is_none_is_rejected(token: bytes) -> None:
    login = conversation()
    assert isinstance(login.receive(b"n,,n=user,r=x", NOW), Challenge)
    assert isinstance(login.receive(token, NOW), Rejected)


PIECES = st.sampled_from(
    [b"n", b"y", b"p=", b",", b"a=", b"n=", b"r=", b"c=", b"biws", b"user", b"=2C", b"=", b"\0"]
) | st.binary(max_size=4)


@given(st.lists(st.lists(PIECES, max_size=12).map(b"".join), min_size=1, max_size=3))
def test_any_bytes_are_rejected_or_answered(tokens: list[bytes]) -> None:
    login = conversation()
    for token in tokens:
        step = login.receive(token, NOW)
        assert isinstance(step, Challenge | Rejected)
        if isinstance(step, Rejected):
            break


def test_older_librdkafka_repeats_its_own_nonce() -> None:
    client = ScramClient("user", "pencil", SHA_256)
    server = conversation()
    first = server.receive(client.first_message(), NOW)
    assert isinstance(first, Challenge)
    own = client.nonce
    client.process_server_first_message(first.token)
    client.auth_message = client.auth_message.replace(b",c=biws,r=", b",c=biws,r=" + own)
    client.nonce = own + client.nonce
    signature = client.hmac(client.stored_key, client.auth_message)
    proof = bytes(a ^ b for a, b in zip(client.client_key, signature, strict=True))
    last = b"c=biws,r=" + client.nonce + b",p=" + base64.b64encode(proof)
    assert isinstance(server.receive(last, NOW), Accepted)


def test_a_tampered_proof_is_rejected() -> None:
    client = ScramClient("user", "pencil", SHA_256)
    server = conversation()
    first = server.receive(client.first_message(), NOW)
    assert isinstance(first, Challenge)
    client.process_server_first_message(first.token)
    head, proof = client.final_message().rsplit(b"p=", 1)
    raw = bytearray(base64.b64decode(proof))
    raw[-1] ^= 1
    last = server.receive(head + b"p=" + base64.b64encode(raw), NOW)
    assert last == Rejected("unknown user or wrong password", "user")
