"""UpdateFeatures (key 57, KIP-584): the levels are fixed by the version of Moldau.

Setting a feature to its current level succeeds, so tools that ensure a level continue.
`kafka-features.sh upgrade --release-version` names every feature of a Kafka release: those that
Moldau does not have are refused one by one, the others succeed. Version 2 (KIP-1022) could only
report that all of them failed, so it is not served.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode
from moldau.broker.handlers.details.authorization import (
    CLUSTER_DENIED,
    CLUSTER_DENIED_TEXT,
    is_cluster_denied,
)
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.advertised import FEATURES
from moldau.broker.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

# Features of Kafka 4.3 that Moldau lacks, and why. They can be set to 0, which disables them.
ABSENT = {
    "eligible.leader.replicas.version": (
        "a partition has one replica, and another one is never elected"
    ),
    "kraft.version": "metadata is kept in the store, without a quorum whose voters could change",
    "share.version": "share groups are not served",
    "streams.version": "streams groups are not served",
}


async def handle(
    broker: Broker, request: UpdateFeaturesRequest, call: Call
) -> UpdateFeaturesResponse:
    if is_cluster_denied(broker, call, Operation.ALTER):
        return UpdateFeaturesResponse(error_code=CLUSTER_DENIED, error_message=CLUSTER_DENIED_TEXT)
    results = [_result(update) for update in request.feature_updates]
    refused = [result for result in results if result.error_code]
    if refused and len(refused) == len(results):  # Kafka's answer, which names the first
        return UpdateFeaturesResponse(
            error_code=ErrorCode.INVALID_UPDATE_VERSION,
            error_message="The update failed for all features since the following feature had an "
            f"error: {refused[0].error_message}",
        )
    return UpdateFeaturesResponse(error_message=None, results=results)


def _result(update: FeatureUpdateKey) -> UpdatableFeatureResult:
    feature, why = FEATURES.get(update.feature), ABSENT.get(update.feature)
    level = feature.level if feature else 0 if why else None
    if update.max_version_level == level:
        return UpdatableFeatureResult(update.feature, error_message=None)
    if feature:
        reason = f"It is fixed at {level} in this version of Moldau."
    else:
        because = f": {why}" if why else ""
        reason = f"This broker does not support this feature{because}."
    return UpdatableFeatureResult(
        update.feature,
        ErrorCode.INVALID_UPDATE_VERSION,
        f"Invalid update version {update.max_version_level} for feature {update.feature}. {reason}",
    )
