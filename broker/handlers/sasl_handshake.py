"""SaslHandshake (key 17) of a connection that is not about to log in.

Where clients log in, it begins the next login of a live session (KIP-368); elsewhere a client is
given the reason, instead of being disconnected.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handle(broker: Broker, request: SaslHandshakeRequest, call: Call) -> None:
    login = call.connection.login
    if login is None:
        call.reply(SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE))
    else:
        login.begin_again(call, request)
