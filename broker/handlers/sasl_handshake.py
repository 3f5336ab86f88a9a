"""SaslHandshake (key 17) on a connection that is not logging in.

On a listener with SASL it begins a login that extends the session (KIP-368); elsewhere the reply
gives the reason, instead of a disconnect.
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
