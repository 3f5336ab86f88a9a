"""AlterUserScramCredentials: API key 51, version 0."""

from __future__ import annotations

from moldau.broker.wire.schema import Bytes, Int8, Int16, Int32, Message, String


class ScramCredentialDeletion(Message):
    name: String = ""
    mechanism: Int8 = 0


class ScramCredentialUpsertion(Message):
    name: String = ""
    mechanism: Int8 = 0
    iterations: Int32 = 0
    salt: Bytes = b""
    salted_password: Bytes = b""


class AlterUserScramCredentialsRequest(Message):
    deletions: list[ScramCredentialDeletion] = []
    upsertions: list[ScramCredentialUpsertion] = []


class AlterUserScramCredentialsResult(Message):
    user: String = ""
    error_code: Int16 = 0
    error_message: String | None = ""


class AlterUserScramCredentialsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[AlterUserScramCredentialsResult] = []
