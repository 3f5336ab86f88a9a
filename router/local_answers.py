"""What the router answers by itself: ApiVersions and FindCoordinator. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from broker.placement import find_coordinator
from broker.settings.processes import Endpoint
from broker.wire.advertised import api_versions, unsupported_api_versions
from broker.wire.apis import API_VERSIONS
from broker.wire.batch import Buffer
from broker.wire.frame import RequestHeader, read_request_header, response_frame
from broker.wire.schema import Message

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
