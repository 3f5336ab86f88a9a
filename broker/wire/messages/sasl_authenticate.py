"""SaslAuthenticate: API key 36, versions 0 to 2."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import Bytes, F, Int16, Int64, Message, String


class SaslAuthenticateRequest(Message):
    auth_bytes: Bytes = b""


class SaslAuthenticateResponse(Message):
    error_code: Int16 = 0
    error_message: String | None = ""
    auth_bytes: Bytes = b""
    session_lifetime_ms: Annotated[Int64, F(since=1)] = 0
