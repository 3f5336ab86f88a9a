"""UpdateFeatures (key 57, KIP-584; KIP-1022: v2): the levels are fixed by the version of Moldau.

Setting a feature to the level it has succeeds, so that tools which make sure of a level go on.
"""

from __future__ import annotations

from broker.errors import ErrorCode
from broker.handlers.authorization import CLUSTER_DENIED, CLUSTER_DENIED_TEXT, is_cluster_denied
from broker.handlers.context import Broker
from broker.security.resources import Operation
from broker.server.call import Call
from broker.wire.advertised import FEATURES
from broker.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

LAST_VERSION_WITH_RESULTS = 1


async def handle(
    broker: Broker, request: UpdateFeaturesRequest, call: Call
) -> UpdateFeaturesResponse:
    if is_cluster_denied(broker, call, Operation.ALTER):
        return UpdateFeaturesResponse(error_code=CLUSTER_DENIED, error_message=CLUSTER_DENIED_TEXT)
    for update in request.feature_updates:
        refusal = _refusal(update)
        if refusal is not None:
            # All or nothing, and the first one that cannot be is named, as in Kafka 4.
            return UpdateFeaturesResponse(
                error_code=ErrorCode.INVALID_UPDATE_VERSION,
                error_message=f"The update failed for all features since the following feature "
                f"had an error: Invalid update version {update.max_version_level} for feature "
                f"{update.feature}. {refusal}",
            )
    results = [
        UpdatableFeatureResult(update.feature, error_message=None)
        for update in request.feature_updates
        if call.header.api_version <= LAST_VERSION_WITH_RESULTS
    ]
    return UpdateFeaturesResponse(error_message=None, results=results)


def _refusal(update: FeatureUpdateKey) -> str | None:
    feature = FEATURES.get(update.feature)
    if feature is None:
        return "This broker does not support this feature."
    if update.max_version_level != feature.level:
        return f"It is fixed at {feature.level} in this version of Moldau."
    return None
