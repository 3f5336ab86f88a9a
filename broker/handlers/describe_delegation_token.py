"""DescribeDelegationToken (key 41, KIP-48, KIP-373): tokens with their HMACs.

A token is shown only to those who may use it: its owner, requester and renewers, principals with
DESCRIBE on the token, and principals with DESCRIBE_TOKENS on its owner."""

from __future__ import annotations

import asyncio

from moldau.broker.broker import Broker
from moldau.broker.errors import KafkaError
from moldau.broker.handlers.details.authorization import DELEGATION_TOKEN, USER
from moldau.broker.security.identity import Identity
from moldau.broker.security.resources import Operation
from moldau.broker.security.tokens import Token, check_allowed, split_principal
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)

AT_ONCE = 250  # checked before other requests get a turn


async def handle(
    broker: Broker, request: DescribeDelegationTokenRequest, call: Call
) -> DescribeDelegationTokenResponse:
    identity, tokens = call.identity, broker.tokens
    try:
        check_allowed(identity)
        tokens.check_enabled()
    except KafkaError as refusal:
        return DescribeDelegationTokenResponse(refusal.code)
    wanted = None
    if request.owners is not None:
        wanted = {f"{each.principal_type}:{each.principal_name}" for each in request.owners}
    sees_some = broker.authorizer.allows_on_any(identity, Operation.DESCRIBE, DELEGATION_TOKEN)
    found = []
    for number, (token_id, token) in enumerate(list(tokens.all.items())):
        if number % AT_ONCE == AT_ONCE - 1:
            await asyncio.sleep(0)
        if wanted is not None and not any(map(token.concerns, wanted)):
            continue
        if _sees(broker, identity, token_id, token, sees_some):
            found.append(_described(token_id, token, tokens.hmac(token_id)))
    return DescribeDelegationTokenResponse(tokens=found)


def _sees(broker: Broker, identity: Identity, token_id: str, token: Token, sees_some: bool) -> bool:
    """`sees_some`: the client may describe some tokens. Otherwise the authorizer is not asked for
    each token: there may be more tokens than decisions are cached for."""
    if identity.is_trusted or token.concerns(identity.principal):
        return True
    allows = broker.authorizer.allows
    return allows(identity, Operation.DESCRIBE_TOKENS, USER, token.owner) or (
        sees_some and allows(identity, Operation.DESCRIBE, DELEGATION_TOKEN, token_id)
    )


def _described(token_id: str, token: Token, made: bytes) -> DescribedDelegationToken:
    return DescribedDelegationToken(
        *split_principal(token.owner),
        *split_principal(token.requester),
        token.issued_at,
        token.expires_at,
        token.max_at,
        token_id,
        made,
        [DescribedDelegationTokenRenewer(*split_principal(each)) for each in token.renewers],
    )
