"""CreateDelegationToken: API key 38, versions 1 to 3."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import Bytes, F, Int16, Int32, Int64, Message, String


class CreatableRenewers(Message):
    principal_type: String = ""
    principal_name: String = ""


class CreateDelegationTokenRequest(Message):
    owner_principal_type: Annotated[String | None, F(since=3)] = ""
    owner_principal_name: Annotated[String | None, F(since=3)] = ""
    renewers: list[CreatableRenewers] = []
    max_lifetime_ms: Int64 = 0


class CreateDelegationTokenResponse(Message):
    error_code: Int16 = 0
    principal_type: String = ""
    principal_name: String = ""
    token_requester_principal_type: Annotated[String, F(since=3)] = ""
    token_requester_principal_name: Annotated[String, F(since=3)] = ""
    issue_timestamp_ms: Int64 = 0
    expiry_timestamp_ms: Int64 = 0
    max_timestamp_ms: Int64 = 0
    token_id: String = ""
    hmac: Bytes = b""
    throttle_time_ms: Int32 = 0
