"""CreateDelegationToken (key 38, KIP-48; KIP-373: for another owner, from v3).

The token can be used on every worker before the reply. The reply has no field for an error message.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError, StoreFault, code_for
from moldau.broker.handlers.details.authorization import USER, is_denied
from moldau.broker.security.resources import Operation
from moldau.broker.security.tokens import (
    Token,
    check_allowed,
    checked_principals,
    owner_of,
    split_principal,
)
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)

NO_TIME = -1


async def handle(
    broker: Broker, request: CreateDelegationTokenRequest, call: Call
) -> CreateDelegationTokenResponse:
    identity = call.identity
    owner = owner_of(identity, request.owner_principal_type, request.owner_principal_name)
    kind, name = split_principal(owner)
    requester = split_principal(identity.principal)
    try:
        token_id, token = await _created(broker, request, call, owner)
    except (KafkaError, StoreFault) as fault:
        return CreateDelegationTokenResponse(
            code_for(fault), kind, name, *requester, NO_TIME, NO_TIME, NO_TIME
        )
    times = (token.issued_at, token.expires_at, token.max_at)
    made = broker.tokens.hmac(token_id)
    return CreateDelegationTokenResponse(0, kind, name, *requester, *times, token_id, made)


async def _created(
    broker: Broker, request: CreateDelegationTokenRequest, call: Call, owner: str
) -> tuple[str, Token]:
    identity, tokens = call.identity, broker.tokens
    check_allowed(identity)
    if owner != identity.principal and is_denied(
        broker, call, Operation.CREATE_TOKENS, USER, owner
    ):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
    tokens.check_enabled()
    renewers = checked_principals(
        owner, ((each.principal_type, each.principal_name) for each in request.renewers)
    )
    made = await tokens.create(owner, identity.principal, renewers, request.max_lifetime_ms)
    await broker.changes_applied()
    token_id, token = made
    facts = {"owner": owner, "renewers": list(renewers), "expires_ms": token.expires_at}
    broker.audit.changed(identity, "token", "created", token_id, **facts)
    return made
