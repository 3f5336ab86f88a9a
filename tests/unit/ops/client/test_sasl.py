"""Logins of the tools: the requests they send, and what they say when they are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from moldau.broker.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from moldau.broker.wire.schema import Message
from moldau.ops.client import AuthenticationFailed
from moldau.ops.client.sasl import authentication
from moldau.ops.client.security import Sasl

ACCEPTED = SaslHandshakeResponse(0, [])
PLAIN = Sasl("PLAIN", "alice", "secret")


def log_in(sasl: Sasl, *answers: Message) -> tuple[list[Any], int]:
    """The requests sent, and the session's lifetime."""
    steps = authentication(sasl)
    sent: list[Any] = [next(steps)]
    for answer in answers:
        try:
            sent.append(steps.send(answer))
        except StopIteration as end:
            return sent, end.value
    raise AssertionError(f"not through after {sent}")


def test_plain() -> None:
    done = SaslAuthenticateResponse(0, None, b"", 3_600_000)
    sent, lifetime_ms = log_in(PLAIN, ACCEPTED, done)
    assert sent == [SaslHandshakeRequest("PLAIN"), SaslAuthenticateRequest(b"\0alice\0secret")]
    assert lifetime_ms == 3_600_000


def test_a_token_of_a_file_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    sasl = Sasl("OAUTHBEARER", token_file=str(file))
    for token in ("one", "two"):
        file.write_text(f"{token}\n")
        sent, _ = log_in(sasl, ACCEPTED, SaslAuthenticateResponse())
        assert sent[1].auth_bytes == f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    file.unlink()
    with pytest.raises(AuthenticationFailed, match=f"{file} cannot be read"):
        log_in(sasl, ACCEPTED, SaslAuthenticateResponse())


def test_a_refused_token_is_explained_as_rfc_7628_has_it() -> None:
    sasl = Sasl("OAUTHBEARER", token="x")
    challenge = SaslAuthenticateResponse(0, None, b'{"status":"invalid_token"}')
    failed = SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, "invalid_token")
    with pytest.raises(AuthenticationFailed, match="does not accept the token: invalid_token"):
        log_in(sasl, ACCEPTED, challenge, failed)
    # A broker that says so twice is not believed to have accepted it.
    with pytest.raises(AuthenticationFailed, match="invalid_token"):
        log_in(sasl, ACCEPTED, challenge, SaslAuthenticateResponse())


def test_refusals_name_cause_and_remedy() -> None:
    failed = SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, "no such thing.")
    with pytest.raises(AuthenticationFailed, match=r"user alice: no such thing;.*sasl\.password"):
        log_in(PLAIN, ACCEPTED, failed)
    unknown = SaslHandshakeResponse(ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["SCRAM-SHA-256"])
    with pytest.raises(AuthenticationFailed, match=r"sasl\.mechanism=PLAIN.*has: SCRAM-SHA-256"):
        log_in(PLAIN, unknown)
    no_sasl = SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE, [])
    with pytest.raises(AuthenticationFailed, match="wants no login"):
        log_in(PLAIN, no_sasl)


def test_a_broker_that_cannot_prove_itself_is_refused() -> None:
    sasl = Sasl("SCRAM-SHA-256", "alice", "secret")
    steps = authentication(sasl)
    next(steps)
    first: Any = steps.send(ACCEPTED)
    nonce = first.auth_bytes.rpartition(b"r=")[2]
    steps.send(SaslAuthenticateResponse(0, None, b"r=" + nonce + b"x,s=c2FsdA==,i=4096"))
    with pytest.raises(AuthenticationFailed, match="not the broker it claims to be"):
        steps.send(SaslAuthenticateResponse(0, None, b"v=AAAA"))
