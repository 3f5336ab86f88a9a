"""RenewDelegationToken (key 39, KIP-48): the owner or a renewer extends a token, up to its maximum
lifetime."""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError, StoreFault, code_for
from moldau.broker.security.tokens import Token, check_allowed, renewed
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


async def handle(
    broker: Broker, request: RenewDelegationTokenRequest, call: Call
) -> RenewDelegationTokenResponse:
    identity, tokens = call.identity, broker.tokens

    def change(token: Token, now: int) -> Token:
        return renewed(token, identity, tokens.lifetimes, request.renew_period_ms, now)

    try:
        check_allowed(identity)
        token_id = tokens.id_of(bytes(request.hmac))
        token, _ = await tokens.alter(token_id, change)
    except (KafkaError, StoreFault) as fault:
        code = code_for(fault)
        return RenewDelegationTokenResponse(code, -1 if code == NOT_ALLOWED else 0)
    assert token is not None
    await broker.changes_applied()
    facts = {"owner": token.owner, "expires_ms": token.expires_at}
    broker.audit.changed(identity, "token", "renewed", token_id, **facts)
    return RenewDelegationTokenResponse(0, token.expires_at)
