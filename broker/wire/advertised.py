"""The ApiVersions response, made from the table of APIs; the same from workers and routers."""

from __future__ import annotations

from broker.errors import ErrorCode
from broker.wire.apis import APIS, ApiKey
from broker.wire.batch import Buffer
from broker.wire.frame import request_frame, response_frame
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

# The cheapest request: every process answers ApiVersions v0 without the store.
PING = request_frame(APIS[ApiKey.API_VERSIONS], 0, 0, None, ApiVersionsRequest())


def api_versions() -> ApiVersionsResponse:
    return ApiVersionsResponse(
        api_keys=[ApiVersion(api.key, api.advertised_from, api.highest) for api in APIS.values()],
        supported_features=[SupportedFeatureKey(METADATA_VERSION, 7, METADATA_LEVEL)],
        finalized_features_epoch=0,
        finalized_features=[FinalizedFeatureKey(METADATA_VERSION, METADATA_LEVEL, METADATA_LEVEL)],
    )


def unsupported_api_versions(correlation_id: int) -> list[Buffer]:
    """The response to a version of ApiVersions that is not served.

    In the v0 layout, listing the versions that are: the client retries with one of them (KIP-511).
    """
    own = APIS[ApiKey.API_VERSIONS]
    answer = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(own.key, own.lowest, own.highest)],
    )
    return response_frame(own, 0, correlation_id, answer)
