"""DescribeUserScramCredentials: API key 50, version 0."""

from __future__ import annotations

from moldau.broker.wire.schema import Int8, Int16, Int32, Message, String


class UserName(Message):
    name: String = ""


class DescribeUserScramCredentialsRequest(Message):
    users: list[UserName] | None = []


class CredentialInfo(Message):
    mechanism: Int8 = 0
    iterations: Int32 = 0


class DescribeUserScramCredentialsResult(Message):
    user: String = ""
    error_code: Int16 = 0
    error_message: String | None = ""
    credential_infos: list[CredentialInfo] = []


class DescribeUserScramCredentialsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    results: list[DescribeUserScramCredentialsResult] = []
