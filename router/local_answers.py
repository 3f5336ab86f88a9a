"""Replies that the router makes itself: ApiVersions and FindCoordinator. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from moldau.broker.errors import ErrorCode
from moldau.broker.placement import find_coordinator
from moldau.broker.settings.processes import Endpoint
from moldau.broker.wire.advertised import api_versions, unsupported_api_versions
from moldau.broker.wire.apis import ApiKey, Routing
from moldau.broker.wire.batch import Buffer
from moldau.broker.wire.frame import (
    CORRELATION_ID_AT,
    CORRELATION_ID_END,
    RequestHeader,
    read_request_header,
    response_frame,
)
from moldau.broker.wire.repeats import ResponseTemplate
from moldau.broker.wire.schema import Message

MAX_CACHED_BYTES, MAX_CACHED = 512, 2048  # maximum size of a request; maximum number of requests


class LocalAnswers:
    """Replies to requests whose route is LOCAL.

    Clients repeat the same requests, so replies are cached by the bytes of the request. They are
    valid while all workers are up, and not used otherwise: the groups of a worker that is down have
    no coordinator. `is_up` is shared with the owner of this object, which changes it.
    """

    def __init__(
        self, brokers: Sequence[Endpoint], is_up: Sequence[bool], *, has_telemetry: bool = False
    ) -> None:
        self._has_telemetry = has_telemetry
        self._brokers = brokers
        self._is_up = is_up
        self._cached: dict[bytes, ResponseTemplate] = {}  # by the request without correlation id

    def __len__(self) -> int:
        return len(self._cached)

    def reply(self, frame: bytes) -> bytes:
        """Return the response frame to a request frame. Raises MalformedMessage."""
        if not all(self._is_up):
            return self._encode_reply(frame)
        request = frame[:CORRELATION_ID_AT] + frame[CORRELATION_ID_END:]
        cached = self._cached.get(request)
        if cached is None:
            cached = ResponseTemplate(self._encode_reply(frame))
            if len(request) <= MAX_CACHED_BYTES:
                if len(self._cached) >= MAX_CACHED:
                    self._cached.clear()
                self._cached[request] = cached
        return cached.answer(frame)

    def refuse_login(self, frame: bytes) -> bytes:
        """Refuse a login where clients do not log in, or have done so. This is not cached, since
        the request may contain a password."""
        return self._encode_reply(frame)

    def _encode_reply(self, frame: bytes) -> bytes:
        header = read_request_header(frame)
        return b"".join(self._answer(header, frame))

    def _answer(self, header: RequestHeader, frame: bytes) -> list[Buffer]:
        api, version = header.api, header.api_version
        if api is None:
            return unsupported_api_versions(header.correlation_id)
        request, _ = api.request_codec(version).decode(frame, header.body_at)
        message: Message
        if api.key == ApiKey.API_VERSIONS:
            message = api_versions(request, version, has_telemetry=self._has_telemetry)
        elif api.routing is Routing.LOGIN:
            message = api.response(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        else:
            message = find_coordinator(request, version, self._brokers, self._is_up)
        return response_frame(api, version, header.correlation_id, message)
