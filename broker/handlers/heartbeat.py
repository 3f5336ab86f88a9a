"""Heartbeat (key 12): a member is alive, and hears whether a rebalance is on.

The hottest request of groups: no event, no effect, no task, and an answer that is encoded once per
version and error. A member says the same over and over, but for the generation: what it said is
kept with its connection (`Beats`) and found again by its bytes; then nothing is decoded.
"""

from __future__ import annotations

from broker.coordinator.group_coordinator import GroupCoordinator
from broker.handlers.context import Broker
from broker.server.connection import Call
from broker.wire.apis import APIS
from broker.wire.frame import LENGTH, RequestHeader, request_frame, response_frame
from broker.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

HEARTBEAT = APIS[12]
LONGEST_KNOWN = 126  # bytes of a group id whose length a flexible version writes in one byte
_CORRELATION_AT = LENGTH.size
_BODY_AT = _CORRELATION_AT + LENGTH.size
# By version and error: the frame before and after its correlation id.
_answers: dict[int, dict[int, tuple[bytes, bytes]]] = {}


def handle(broker: Broker, request: HeartbeatRequest, call: Call) -> Beats | None:
    error = _heard(broker.group_coordinator, request, request.generation_id)
    call.reply(HeartbeatResponse(error_code=error))
    if len(request.group_id.encode()) > LONGEST_KNOWN:
        return None
    return Beats(broker.group_coordinator, call.header, request)


def _heard(coordinator: GroupCoordinator, request: HeartbeatRequest, generation_id: int) -> int:
    return coordinator.groups.heartbeat(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        generation_id,
        coordinator.now_ms(),
    )


class Beats:
    """What one member says, but for the correlation id and the generation (a `server.Repeat`)."""

    __slots__ = (
        "_answers",
        "_at",
        "_coordinator",
        "_header",
        "_request",
        "_rest",
        "_size",
        "head",
        "kind",
    )

    def __init__(
        self, coordinator: GroupCoordinator, header: RequestHeader, request: HeartbeatRequest
    ) -> None:
        self._coordinator = coordinator
        self._header = header
        self._request = request
        self._answers = _answers.setdefault(header.api_version, {})
        canonical = request_frame(HEARTBEAT, header.api_version, 0, header.client_id, request)[4:]
        length = 1 if header.api_version >= HEARTBEAT.flexible_from else 2
        self._at = header.body_at + length + len(request.group_id.encode())
        self._rest = canonical[self._at + LENGTH.size :]
        self._size = len(canonical)
        self.kind = canonical[:4]
        # Up to the generation, so that the next one, and the next member, take its place.
        self.head = canonical[8 : self._at]

    def describes(self, frame: bytearray) -> bool:
        """Is this the request it was made of, written as we would write it?"""
        return self._matches(frame) and frame.startswith(self.head, 8)

    def header_of(self, frame: bytearray) -> RequestHeader:
        (correlation_id,) = LENGTH.unpack_from(frame, 4)
        known = self._header
        return RequestHeader(
            12, known.api_version, correlation_id, known.client_id, HEARTBEAT, known.body_at
        )

    def answer(self, frame: bytearray) -> bytes | None:
        if len(frame) != self._size or not frame.endswith(self._rest):
            return None
        (generation_id,) = LENGTH.unpack_from(frame, self._at)
        error = _heard(self._coordinator, self._request, generation_id)
        answer = self._answers.get(error)
        if answer is None:
            answer = self._answers[error] = _encoded(self._header.api_version, error)
        length, body = answer
        return length + frame[4:8] + body

    def serve(self, call: Call, frame: bytearray) -> bool:
        answer = self.answer(frame)
        if answer is None:
            return False
        call.reply_with([answer])
        return True

    def _matches(self, frame: bytearray) -> bool:
        return len(frame) == self._size and frame.endswith(self._rest)


def _encoded(version: int, error: int) -> tuple[bytes, bytes]:
    """The frame without its correlation id."""
    parts = response_frame(HEARTBEAT, version, 0, HeartbeatResponse(error_code=error))
    frame = b"".join(parts)
    return frame[:_CORRELATION_AT], frame[_BODY_AT:]
