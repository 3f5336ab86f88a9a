"""SaslHandshake: API key 17, versions 0 and 1."""

from __future__ import annotations

from moldau.broker.wire.schema import Int16, Message, String


class SaslHandshakeRequest(Message):
    mechanism: String = ""


class SaslHandshakeResponse(Message):
    error_code: Int16 = 0
    mechanisms: list[String] = []
