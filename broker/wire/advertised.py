"""The ApiVersions response, built from the table of APIs. Workers and routers send the same."""

from __future__ import annotations

import re
from typing import NamedTuple

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.batch import Buffer
from moldau.broker.wire.frame import request_frame, response_frame
from moldau.broker.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)


class Feature(NamedTuple):
    """A feature (KIP-584). Moldau serves one level of it and offers only that one, so the level
    cannot be changed."""

    level: int


# metadata.version 30 is 4.3-IV0: user interfaces read the broker's version from it.
# transaction.version 2 (KIP-890): Java 4 and franz-go let Produce and TxnOffsetCommit add to a
# transaction, and take the next epoch from EndTxn. Without it they use the APIs of version 1.
# group.version 1 (KIP-848): the consumer protocol. Clients look for key 68, tools for the feature.
FEATURES = {
    "group.version": Feature(1),
    "metadata.version": Feature(30),
    "transaction.version": Feature(2),
}

# The cheapest request: every process answers ApiVersions v0 without the store.
PING = request_frame(APIS[ApiKey.API_VERSIONS], 0, 0, None, ApiVersionsRequest())


_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
FIRST_VERSION_WITH_SOFTWARE = 3
MAX_SOFTWARE = 128  # characters of it that are kept


def api_versions(
    request: ApiVersionsRequest, version: int, *, has_telemetry: bool = False
) -> ApiVersionsResponse:
    """Return the answer to a version of ApiVersions that is served."""
    if version >= FIRST_VERSION_WITH_SOFTWARE and not _names_software(request):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api.key, api.advertised_from, api.highest)
            for api in APIS.values()
            if has_telemetry or not api.is_telemetry
        ],
        supported_features=[
            SupportedFeatureKey(name, feature.level, feature.level)
            for name, feature in FEATURES.items()
        ],
        finalized_features_epoch=0,
        finalized_features=[
            FinalizedFeatureKey(name, feature.level, feature.level)
            for name, feature in FEATURES.items()
        ],
    )


def software_of(request: ApiVersionsRequest) -> tuple[str, str]:
    """Return the client's own name and version (KIP-511); empty if it does not send them."""
    if not _names_software(request):
        return "", ""
    name, version = request.client_software_name, request.client_software_version
    return name[:MAX_SOFTWARE], version[:MAX_SOFTWARE]


def _names_software(request: ApiVersionsRequest) -> bool:
    software = (request.client_software_name, request.client_software_version)
    return all(map(_SOFTWARE_NAME.fullmatch, software))


def unsupported_api_versions(correlation_id: int) -> list[Buffer]:
    """Return the response to a version of ApiVersions that is not served.

    It is in the v0 layout and lists the served versions: the client retries with one of them
    (KIP-511).
    """
    own = APIS[ApiKey.API_VERSIONS]
    answer = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(own.key, own.lowest, own.highest)],
    )
    return response_frame(own, 0, correlation_id, answer)
