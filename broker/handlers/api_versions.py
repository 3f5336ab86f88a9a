"""ApiVersions (key 18): the APIs that are served, from the table of APIs.

KIP-511: v3 has the client's name and version. KIP-584: features. A version that is not served is
answered by the dispatcher, in the v0 layout.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.server.call import Call
from moldau.broker.wire.advertised import api_versions, software_of
from moldau.broker.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse


async def handle(broker: Broker, request: ApiVersionsRequest, call: Call) -> ApiVersionsResponse:
    if broker.telemetry is None:
        return api_versions(request, call.header.api_version)
    answer = api_versions(request, call.header.api_version, has_telemetry=True)
    if not answer.error_code:
        call.connection.know_software(software_of(request))
    return answer
