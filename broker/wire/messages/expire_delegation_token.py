"""ExpireDelegationToken: API key 40, versions 1 and 2."""

from __future__ import annotations

from moldau.broker.wire.schema import Bytes, Int16, Int32, Int64, Message


class ExpireDelegationTokenRequest(Message):
    hmac: Bytes = b""
    expiry_time_period_ms: Int64 = 0


class ExpireDelegationTokenResponse(Message):
    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0
