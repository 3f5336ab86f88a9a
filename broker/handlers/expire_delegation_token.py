"""ExpireDelegationToken (key 40, KIP-48): the owner or a renewer ends a token, at once or later.

When a token is removed, its sessions end on every worker before the reply. In Kafka they last as
long as was announced when they began.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError, StoreFault, code_for
from moldau.broker.security.tokens import Token, check_allowed, expired
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)

NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


async def handle(
    broker: Broker, request: ExpireDelegationTokenRequest, call: Call
) -> ExpireDelegationTokenResponse:
    identity, tokens = call.identity, broker.tokens
    owner = ""

    def change(token: Token, now: int) -> Token | None:
        nonlocal owner
        owner = token.owner
        return expired(token, identity, request.expiry_time_period_ms, now)

    try:
        check_allowed(identity)
        token_id = tokens.id_of(bytes(request.hmac))
        token, now = await tokens.alter(token_id, change)
    except (KafkaError, StoreFault) as fault:
        code = code_for(fault)
        return ExpireDelegationTokenResponse(code, -1 if code == NOT_ALLOWED else 0)
    await broker.changes_applied()
    expires_at = now if token is None else token.expires_at
    action = "deleted" if token is None else "altered"
    broker.audit.changed(identity, "token", action, token_id, owner=owner, expires_ms=expires_at)
    return ExpireDelegationTokenResponse(0, expires_at)
