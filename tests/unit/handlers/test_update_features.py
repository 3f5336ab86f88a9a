"""UpdateFeatures: levels are fixed, and setting the one in force succeeds."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.handlers.update_features import ABSENT, handle
from moldau.broker.security.authorizer import AllowEverything
from moldau.broker.wire.advertised import FEATURES
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

BROKER: Any = SimpleNamespace(authorizer=AllowEverything())
# What `kafka-features.sh upgrade --release-version 4.3` of Kafka 4.3 sends.
RELEASE_4_3 = {
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "kraft.version": 1,
    "metadata.version": 30,
    "share.version": 1,
    "streams.version": 1,
    "transaction.version": 2,
}


def update(levels: dict[str, int]) -> UpdateFeaturesResponse:
    call: Any = SimpleNamespace(header=SimpleNamespace(api_version=1))
    updates = [FeatureUpdateKey(feature, level) for feature, level in levels.items()]
    return asyncio.run(handle(BROKER, UpdateFeaturesRequest(feature_updates=updates), call))


@pytest.mark.parametrize("feature", FEATURES)
def test_only_the_level_in_force_can_be_set(feature: str) -> None:
    level = FEATURES[feature].level
    answer = update({feature: level})
    assert (answer.error_code, answer.error_message) == (0, None)
    assert [(each.feature, each.error_code) for each in answer.results] == [(feature, 0)]
    for other in {level - 1, level + 1, 0, -1}:
        refused = update({feature: other})
        assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert f"fixed at {level}" in (refused.error_message or "")


def test_a_release_is_refused_for_the_features_that_are_not_here_only() -> None:
    answer = update(RELEASE_4_3)
    assert (answer.error_code, answer.error_message) == (0, None)
    assert [each.feature for each in answer.results] == list(RELEASE_4_3)
    refused = {each.feature: each.error_message or "" for each in answer.results if each.error_code}
    assert refused.keys() == RELEASE_4_3.keys() - FEATURES.keys() == ABSENT.keys()
    assert all(ABSENT[feature] in text for feature, text in refused.items())


def test_what_is_not_here_can_be_disabled() -> None:
    assert update({"share.version": 0}).error_code == 0


def test_a_version_that_cannot_answer_by_feature_is_not_served() -> None:
    """Java takes the highest it finds, and v2 has one error for all features."""
    assert APIS[ApiKey.UPDATE_FEATURES].highest == 1
