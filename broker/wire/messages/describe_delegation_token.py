"""DescribeDelegationToken: API key 41, versions 1 to 3."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import Bytes, F, Int16, Int32, Int64, Message, String


class DescribeDelegationTokenOwner(Message):
    principal_type: String = ""
    principal_name: String = ""


class DescribeDelegationTokenRequest(Message):
    owners: list[DescribeDelegationTokenOwner] | None = []


class DescribedDelegationTokenRenewer(Message):
    principal_type: String = ""
    principal_name: String = ""


class DescribedDelegationToken(Message):
    principal_type: String = ""
    principal_name: String = ""
    token_requester_principal_type: Annotated[String, F(since=3)] = ""
    token_requester_principal_name: Annotated[String, F(since=3)] = ""
    issue_timestamp: Int64 = 0
    expiry_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    token_id: String = ""
    hmac: Bytes = b""
    renewers: list[DescribedDelegationTokenRenewer] = []


class DescribeDelegationTokenResponse(Message):
    error_code: Int16 = 0
    tokens: list[DescribedDelegationToken] = []
    throttle_time_ms: Int32 = 0
