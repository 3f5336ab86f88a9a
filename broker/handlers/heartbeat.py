"""Heartbeat (key 12): a member is alive, and hears whether a rebalance is on.

The hottest request of groups: no event, no effect, no task, and an answer that is encoded once per
version and error.
"""

from __future__ import annotations

from broker.handlers.context import Broker
from broker.server.connection import Call
from broker.wire.frame import LENGTH, response_frame
from broker.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

_CORRELATION_AT = LENGTH.size
_BODY_AT = _CORRELATION_AT + LENGTH.size
_answers: dict[tuple[int, int], tuple[bytes, bytes]] = {}


def handle(broker: Broker, request: HeartbeatRequest, call: Call) -> None:
    groups = broker.groups
    error = groups.core.heartbeat(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        groups.now_ms(),
    )
    header = call.header
    answer = _answers.get((header.api_version, error))
    if answer is None:
        answer = _answers[header.api_version, error] = _encoded(call, error)
    length, body = answer
    call.reply_with([length + LENGTH.pack(header.correlation_id) + body])


def _encoded(call: Call, error: int) -> tuple[bytes, bytes]:
    """The frame without its correlation id."""
    api = call.header.api
    assert api is not None
    parts = response_frame(api, call.header.api_version, 0, HeartbeatResponse(error_code=error))
    frame = b"".join(parts)
    return frame[:_CORRELATION_AT], frame[_BODY_AT:]
