"""RenewDelegationToken: API key 39, versions 1 and 2."""

from __future__ import annotations

from moldau.broker.wire.schema import Bytes, Int16, Int32, Int64, Message


class RenewDelegationTokenRequest(Message):
    hmac: Bytes = b""
    renew_period_ms: Int64 = 0


class RenewDelegationTokenResponse(Message):
    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0
