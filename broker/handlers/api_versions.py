"""ApiVersions (key 18): what this broker speaks, straight from the table of APIs.

KIP-511: v3 brings the client's name and version. KIP-584: features. A version that is not served
is answered by the dispatcher, in the v0 layout.
"""

from __future__ import annotations

from broker.handlers.context import Broker
from broker.server.connection import Call
from broker.wire.apis import APIS
from broker.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

# 4.0-IV3: user interfaces read the broker's version from it.
METADATA_VERSION = "metadata.version"
METADATA_LEVEL = 25


async def handle(broker: Broker, request: ApiVersionsRequest, call: Call) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        api_keys=[ApiVersion(api.key, api.advertised_from, api.highest) for api in APIS.values()],
        supported_features=[SupportedFeatureKey(METADATA_VERSION, 7, METADATA_LEVEL)],
        finalized_features_epoch=0,
        finalized_features=[FinalizedFeatureKey(METADATA_VERSION, METADATA_LEVEL, METADATA_LEVEL)],
    )
