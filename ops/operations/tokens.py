"""Delegation tokens of a running broker: find, create, renew and expire them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

from moldau.broker.security.identity import USER
from moldau.broker.wire.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
)
from moldau.broker.wire.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from moldau.broker.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from moldau.broker.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from moldau.ops.client import Cluster, refusal

USER_TYPE = USER.removesuffix(":")
AT_ONCE = -1
DEFAULT = -1  # the time that is configured


class TokenInfo(NamedTuple):
    """Times in milliseconds since 1970; principals as `User:alice`."""

    token_id: str
    token_hmac: bytes
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_at: int
    expires_at: int
    max_at: int

    @property
    def password(self) -> str:
        """The password that a client logs in with."""
        return base64.b64encode(self.token_hmac).decode()


def user_of(name: str) -> str:
    """`alice`, or `User:alice` as Kafka's tools have it."""
    return name.removeprefix(USER)


def create_token(
    cluster: Cluster, owner: str | None, renewers: Sequence[str], max_lifetime_ms: int | None
) -> TokenInfo:
    """Raises ClientError."""
    request = CreateDelegationTokenRequest(
        None if owner is None else USER_TYPE,
        owner,
        [CreatableRenewers(USER_TYPE, each) for each in renewers],
        DEFAULT if max_lifetime_ms is None else max_lifetime_ms,
    )
    answer = cluster.call(request)
    if answer.error_code:
        subject = "token" if owner is None else f"token of {owner}"
        raise refusal(subject, answer.error_code)
    return TokenInfo(
        answer.token_id,
        bytes(answer.hmac),
        f"{answer.principal_type}:{answer.principal_name}",
        f"{answer.token_requester_principal_type}:{answer.token_requester_principal_name}",
        tuple(USER + each for each in renewers),
        answer.issue_timestamp_ms,
        answer.expiry_timestamp_ms,
        answer.max_timestamp_ms,
    )


def find_tokens(cluster: Cluster, users: Sequence[str] | None = None) -> list[TokenInfo]:
    """The visible ones; `users`: only those of which one of them is owner or renewer. Raises
    ClientError."""
    owners = None
    if users is not None:
        owners = [DescribeDelegationTokenOwner(USER_TYPE, each) for each in users]
    answer = cluster.call(DescribeDelegationTokenRequest(owners))
    if answer.error_code:
        raise refusal("tokens", answer.error_code)
    return sorted((_read(each) for each in answer.tokens), key=lambda one: one[2:])


def _read(token: Any) -> TokenInfo:
    return TokenInfo(
        token.token_id,
        bytes(token.hmac),
        f"{token.principal_type}:{token.principal_name}",
        f"{token.token_requester_principal_type}:{token.token_requester_principal_name}",
        tuple(f"{each.principal_type}:{each.principal_name}" for each in token.renewers),
        token.issue_timestamp,
        token.expiry_timestamp,
        token.max_timestamp,
    )


def renew_token(cluster: Cluster, token_id: str, token_hmac: bytes, period_ms: int) -> int:
    """When it expires now. Raises ClientError."""
    answer = cluster.call(RenewDelegationTokenRequest(token_hmac, period_ms))
    if answer.error_code:
        raise refusal(f"token {token_id}", answer.error_code)
    return int(answer.expiry_timestamp_ms)


def expire_token(cluster: Cluster, token_id: str, token_hmac: bytes, period_ms: int) -> int:
    answer = cluster.call(ExpireDelegationTokenRequest(token_hmac, period_ms))
    if answer.error_code:
        raise refusal(f"token {token_id}", answer.error_code)
    return int(answer.expiry_timestamp_ms)
