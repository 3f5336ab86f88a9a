"""Delegation tokens for tests: requests by their fields, and logins by an independent client."""

from __future__ import annotations

from typing import Any, Protocol

from kafka.net.sasl.scram import ScramClient

from moldau.broker.security.tokens import password_of
from moldau.broker.wire.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from moldau.broker.wire.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from moldau.broker.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from moldau.broker.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from moldau.broker.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from moldau.broker.wire.schema import Message
from tests.support.raw.sasl import LoginFailed, SaslClient

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"


class Caller(Protocol):
    def call(self, request: Message, version: int) -> Any: ...


class TokenScramClient(ScramClient):  # type: ignore[misc]
    """kafka-python's, with the extension that it does not have."""

    extension = b"tokenauth=true"

    def first_message(self) -> bytes:
        message: bytes = super().first_message() + b"," + self.extension
        self.auth_message += b"," + self.extension
        return message


def create(
    client: Caller,
    owner: str | None = None,
    renewers: tuple[str, ...] = (),
    max_lifetime_ms: int = -1,
    version: int = 3,
) -> CreateDelegationTokenResponse:
    request = CreateDelegationTokenRequest(
        None if owner is None else "User",
        owner,
        [CreatableRenewers("User", each) for each in renewers],
        max_lifetime_ms,
    )
    answer: CreateDelegationTokenResponse = client.call(request, version)
    return answer


def created(client: Caller, *args: Any, **options: Any) -> CreateDelegationTokenResponse:
    """One that has to be made."""
    made = create(client, *args, **options)
    assert made.error_code == 0, made
    return made


def renew(client: Caller, token_hmac: bytes, period_ms: int = -1) -> tuple[int, int]:
    """The error code, and when it expires now."""
    answer = client.call(RenewDelegationTokenRequest(token_hmac, period_ms), 2)
    return answer.error_code, answer.expiry_timestamp_ms


def expire(client: Caller, token_hmac: bytes, period_ms: int = -1) -> tuple[int, int]:
    answer = client.call(ExpireDelegationTokenRequest(token_hmac, period_ms), 2)
    return answer.error_code, answer.expiry_timestamp_ms


def describe(client: Caller, *owners: str) -> dict[str, DescribedDelegationToken]:
    """Tokens by id; all that the client may see unless owners are given."""
    named = [DescribeDelegationTokenOwner("User", each) for each in owners] if owners else None
    answer = client.call(DescribeDelegationTokenRequest(named), 3)
    assert answer.error_code == 0, answer
    return {each.token_id: each for each in answer.tokens}


def log_in(
    client: SaslClient,
    token_id: str,
    token_hmac: bytes,
    mechanism: str = SHA_256,
    extension: bytes = TokenScramClient.extension,
) -> SaslAuthenticateResponse:
    """Raises LoginFailed."""
    assert client.handshake(mechanism).error_code == 0
    scram = TokenScramClient(token_id, password_of(bytes(token_hmac)), mechanism)
    scram.extension = extension
    first = good(client.token(scram.first_message()))
    scram.process_server_first_message(bytes(first.auth_bytes))
    last = good(client.token(scram.final_message()))
    scram.process_server_final_message(bytes(last.auth_bytes))
    return last


def good(response: SaslAuthenticateResponse) -> SaslAuthenticateResponse:
    if response.error_code:
        raise LoginFailed(response.error_code, response.error_message)
    return response
