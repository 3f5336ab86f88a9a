"""SaslAuthenticate (key 36) on a connection that is not logging in, where it is refused.

v1 has the session's lifetime (KIP-368). Logins are served in `server/login.py`.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)

NOT_EXPECTED = "SaslAuthenticate request received after successful authentication"


def handle(broker: Broker, request: SaslAuthenticateRequest, call: Call) -> None:
    call.reply(SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, NOT_EXPECTED))
