"""What the router answers by itself: ApiVersions and FindCoordinator. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from broker.errors import ErrorCode
from broker.settings.serve import Endpoint
from broker.slots import owner_of
from broker.wire.advertised import api_versions, unsupported_api_versions
from broker.wire.apis import API_VERSIONS
from broker.wire.batch import Buffer
from broker.wire.frame import RequestHeader, read_request_header, response_frame
from broker.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from broker.wire.schema import Message

GROUP, TRANSACTION = 0, 1
FIRST_VERSION_WITH_MANY = 4
NO_NODE = -1
LONGEST_KNOWN, MOST_KNOWN = 512, 2048  # bytes of a request, requests


class Answers:
    """Replies of the router's own. The same requests come again and again, and are answered with
    what was made of them before: while all workers are there nothing in it depends on when it is
    asked. `is_up` is looked at each time: groups of a worker that is away have no coordinator."""

    def __init__(self, brokers: Sequence[Endpoint], is_up: Sequence[bool]) -> None:
        self._brokers = brokers
        self._is_up = is_up
        # A request without its correlation id -> what stands before and behind it in the reply.
        self._known: dict[bytes, tuple[bytes, bytes]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def reply(self, frame: bytes) -> bytes:
        """The response frame to a request that is planned LOCAL. Raises MalformedMessage."""
        if not all(self._is_up):
            return self._made(frame)
        request = frame[:4] + frame[8:]
        known = self._known.get(request)
        if known is None:
            made = self._made(frame)
            known = made[:4], made[8:]
            if len(request) <= LONGEST_KNOWN:
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()
                self._known[request] = known
        return known[0] + frame[4:8] + known[1]

    def _made(self, frame: bytes) -> bytes:
        header = read_request_header(frame)
        return b"".join(answer(header, frame, self._brokers, self._is_up))


def answer(
    header: RequestHeader, frame: bytes, brokers: Sequence[Endpoint], is_up: Sequence[bool]
) -> list[Buffer]:
    """The response frame to a request that is planned LOCAL. Raises MalformedMessage."""
    api, version = header.api, header.api_version
    if api is None:
        return unsupported_api_versions(header.correlation_id)
    request, _ = api.request_codec(version).decode(frame, header.body_at)
    message: Message
    if api.key == API_VERSIONS:
        message = api_versions()
    else:
        message = find_coordinator(request, version, brokers, is_up)
    return response_frame(api, version, header.correlation_id, message)


def find_coordinator(
    request: FindCoordinatorRequest,
    version: int,
    brokers: Sequence[Endpoint],
    is_up: Sequence[bool],
) -> FindCoordinatorResponse:
    """Who coordinates groups or transactional ids, as clients are told of brokers.

    `is_up`: which workers are there, as far as whoever answers knows.
    """
    keys = [request.key] if version < FIRST_VERSION_WITH_MANY else request.coordinator_keys
    found = [_coordinator(key, request.key_type, brokers, is_up) for key in keys]
    if version >= FIRST_VERSION_WITH_MANY:
        return FindCoordinatorResponse(coordinators=found)
    (one,) = found
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _coordinator(
    key: str, key_type: int, brokers: Sequence[Endpoint], is_up: Sequence[bool]
) -> Coordinator:
    if key_type not in (GROUP, TRANSACTION):
        text = f"there are no coordinators of type {key_type}"
        return Coordinator(key, NO_NODE, "", NO_NODE, ErrorCode.INVALID_REQUEST, text)
    if key_type == GROUP and not key:
        text = "no group id"
        return Coordinator(key, NO_NODE, "", NO_NODE, ErrorCode.INVALID_GROUP_ID, text)
    owner = owner_of(key, len(is_up))
    if not is_up[owner]:
        # Clients ask again after a while, and so do not run against a closed port.
        text = "its coordinator is away"
        return Coordinator(key, NO_NODE, "", NO_NODE, ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
    # One broker: what clients are told is the router, whoever coordinates behind it.
    node = brokers[0] if len(brokers) == 1 else brokers[owner]
    return Coordinator(key, node.node_id, node.host, node.port, 0, None)
