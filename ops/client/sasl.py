"""Authentication on a connection, without I/O: the requests to send, given their replies.

A generator, so that blocking clients and those on an event loop have the same: it yields requests,
is sent their replies, and returns how long the session may last.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from moldau.broker.wire.messages.sasl_handshake import SaslHandshakeRequest
from moldau.broker.wire.schema import Message
from moldau.ops.client.sasl_tokens import AuthenticationFailed, conversation
from moldau.ops.client.security import OAUTHBEARER, Sasl

Authentication = Generator[Message, Any, int]

# In every version that brokers of today serve: they cannot be agreed on before.
VERSIONS: dict[type[Message], int] = {SaslHandshakeRequest: 1, SaslAuthenticateRequest: 1}


def authentication(sasl: Sasl) -> Authentication:
    """Returns the milliseconds after which to authenticate again, 0: never (KIP-368).

    Raises AuthenticationFailed.
    """
    offered = yield SaslHandshakeRequest(sasl.mechanism)
    if offered.error_code:
        raise AuthenticationFailed(_no_handshake(sasl, offered))
    tokens = conversation(sasl)
    token = next(tokens)
    while True:
        answer = yield SaslAuthenticateRequest(token)
        if answer.error_code:
            raise AuthenticationFailed(_refused(sasl, answer))
        try:
            token = tokens.send(bytes(answer.auth_bytes))
        except StopIteration:
            return int(answer.session_lifetime_ms)


def _no_handshake(sasl: Sasl, offered: Any) -> str:
    if offered.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        known = ", ".join(offered.mechanisms) or "none"
        return (
            f"the broker does not accept sasl.mechanism={sasl.mechanism}; it has: {known} "
            "(sasl.enabled.mechanisms)"
        )
    return (
        "the broker wants no login on this port (ILLEGAL_SASL_STATE); "
        "security.protocol is PLAINTEXT or SSL there"
    )


def _refused(sasl: Sasl, answer: Any) -> str:
    reason = (answer.error_message or "").rstrip(".")
    if sasl.mechanism == OAUTHBEARER:
        return f"the broker does not accept the token: {reason}; is it expired, or for another?"
    if sasl.is_delegation_token:
        return (
            f"the broker does not accept delegation token {sasl.username}: {reason}; has it "
            "expired, or was it removed? `moldau tokens list` shows those that exist"
        )
    remedy = "check sasl.username and sasl.password; `moldau users list` shows who exists"
    return f"the broker does not accept user {sasl.username}: {reason}; {remedy}"
