"""ApiVersions: API key 18, versions 0 to 4."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import Bool, F, Int16, Int32, Int64, Message, String


class ApiVersionsRequest(Message):
    client_software_name: Annotated[String, F(since=3)] = ""
    client_software_version: Annotated[String, F(since=3)] = ""


class ApiVersion(Message):
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


class SupportedFeatureKey(Message):
    name: Annotated[String, F(since=3)] = ""
    min_version: Annotated[Int16, F(since=3)] = 0
    max_version: Annotated[Int16, F(since=3)] = 0


class FinalizedFeatureKey(Message):
    name: Annotated[String, F(since=3)] = ""
    max_version_level: Annotated[Int16, F(since=3)] = 0
    min_version_level: Annotated[Int16, F(since=3)] = 0


class ApiVersionsResponse(Message):
    error_code: Int16 = 0
    api_keys: list[ApiVersion] = []
    throttle_time_ms: Annotated[Int32, F(since=1)] = 0
    supported_features: Annotated[list[SupportedFeatureKey], F(since=3, tag=0)] = []
    finalized_features_epoch: Annotated[Int64, F(since=3, tag=1)] = -1
    finalized_features: Annotated[list[FinalizedFeatureKey], F(since=3, tag=2)] = []
    zk_migration_ready: Annotated[Bool, F(since=3, tag=3)] = False
