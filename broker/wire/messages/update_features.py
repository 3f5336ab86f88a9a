"""UpdateFeatures: API key 57, versions 0 and 1."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import Bool, F, Int8, Int16, Int32, Message, String


class FeatureUpdateKey(Message):
    feature: String = ""
    max_version_level: Int16 = 0
    allow_downgrade: Annotated[Bool, F(until=0)] = False
    upgrade_type: Annotated[Int8, F(since=1)] = 1


class UpdateFeaturesRequest(Message):
    timeout_ms: Int32 = 60000
    feature_updates: list[FeatureUpdateKey] = []
    validate_only: Annotated[Bool, F(since=1)] = False


class UpdatableFeatureResult(Message):
    feature: String = ""
    error_code: Int16 = 0
    error_message: String | None = ""


class UpdateFeaturesResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    results: list[UpdatableFeatureResult] = []
