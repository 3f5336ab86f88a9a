"""UpdateFeatures: levels are fixed, and setting the one in force succeeds."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.handlers.update_features import handle
from broker.security.authorizer import AllowEverything
from broker.wire.advertised import FEATURES
from broker.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

BROKER: Any = SimpleNamespace(authorizer=AllowEverything())


def update(feature: str, level: int) -> tuple[int, str | None]:
    call: Any = SimpleNamespace(header=SimpleNamespace(api_version=2))
    request = UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(feature, level)])
    answer = asyncio.run(handle(BROKER, request, call))
    return answer.error_code, answer.error_message


@pytest.mark.parametrize("feature", ["metadata.version", "transaction.version"])
def test_only_the_level_in_force_can_be_set(feature: str) -> None:
    level = FEATURES[feature].level
    assert update(feature, level) == (0, None)
    for other in (level - 1, level + 1, 0):
        error, message = update(feature, other)
        assert error == ErrorCode.INVALID_UPDATE_VERSION
        assert message is not None
        assert f"fixed at {level}" in message
