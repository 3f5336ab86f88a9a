"""Heartbeat (key 12): tells that a member is alive, and returns whether its group is rebalancing.

This is the most frequent request of groups: no event, no effect, no task, and a response that is
encoded once per version and error. A member sends the same request every time, apart from the
generation: its connection keeps a `HeartbeatRoute`, which answers without decoding anything.
"""

from __future__ import annotations

from functools import partial

from moldau.broker.broker import Broker
from moldau.broker.coordinator.groups.coordinator import GroupCoordinator
from moldau.broker.handlers.details.authorization import GROUP, GROUP_DENIED, is_denied
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call, RequestRoute
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import RequestHeader, response_frame
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.broker.wire.primitives import INT32, uvarint
from moldau.broker.wire.repeats import ResponseTemplate

HEARTBEAT = APIS[ApiKey.HEARTBEAT]

_responses: dict[int, dict[int, ResponseTemplate]] = {}  # by version and error


def handle(broker: Broker, request: HeartbeatRequest, call: Call) -> HeartbeatRoute | None:
    if is_denied(broker, call, Operation.READ, GROUP, request.group_id):
        call.reply(HeartbeatResponse(error_code=GROUP_DENIED))
        return None
    route = HeartbeatRoute(broker.group_coordinator, call.header, request)
    error = route.heartbeat(request.generation_id, broker.group_coordinator.now_ms())
    call.reply(HeartbeatResponse(error_code=error))
    return route


class HeartbeatRoute(RequestRoute):
    """Serves the heartbeats of one member."""

    __slots__ = ("_generation_at", "_group_id", "_now_ms", "_responses", "_size", "heartbeat")

    def __init__(
        self, coordinator: GroupCoordinator, header: RequestHeader, request: HeartbeatRequest
    ) -> None:
        super().__init__(header, request)
        self._group_id = request.group_id
        self._now_ms = coordinator.now_ms
        self._responses = _responses.setdefault(header.api_version, {})
        # Takes the generation and the time, returns the error code.
        self.heartbeat = partial(
            coordinator.groups.heartbeat,
            request.group_id,
            request.member_id,
            request.group_instance_id,
        )

    def varying(self, canonical: bytes) -> tuple[int, int]:
        group_id = self._group_id.encode()
        is_flexible = HEARTBEAT.is_flexible(self.header.api_version)
        length_size = len(uvarint(len(group_id) + 1)) if is_flexible else 2
        self._generation_at = start = self.header.body_at + length_size + len(group_id)
        self._size = len(canonical)
        return start, start + INT32.size

    def answer(self, frame: bytearray) -> bytes | None:
        if len(frame) != self._size:
            return None
        (generation_id,) = INT32.unpack_from(frame, self._generation_at)
        error = self.heartbeat(generation_id, self._now_ms())
        response = self._responses.get(error) or self._encode(error)
        return response.answer(frame)

    def serve(self, call: Call, frame: bytearray) -> bool:
        if call.is_metered:
            return self._serve_metered(call, frame)
        answer = self.answer(frame)
        if answer is None:
            return False
        call.reply_with([answer])
        return True

    def _serve_metered(self, call: Call, frame: bytearray) -> bool:
        """The reply carries a throttle time."""
        if len(frame) != self._size:
            return False
        (generation_id,) = INT32.unpack_from(frame, self._generation_at)
        call.reply(HeartbeatResponse(error_code=self.heartbeat(generation_id, self._now_ms())))
        return True

    def _encode(self, error: int) -> ResponseTemplate:
        message = HeartbeatResponse(error_code=error)
        parts = response_frame(HEARTBEAT, self.header.api_version, 0, message)
        made = self._responses[error] = ResponseTemplate(b"".join(parts))
        return made
