"""Heartbeat (key 12): a member is alive, and hears whether a rebalance is on.

The hottest request of groups: no event, no effect, no task.
"""

from __future__ import annotations

from broker.handlers.context import Broker
from broker.server.connection import Call
from broker.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(broker: Broker, request: HeartbeatRequest, call: Call) -> None:
    groups = broker.groups
    error = groups.core.heartbeat(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        groups.now_ms(),
    )
    call.reply(HeartbeatResponse(error_code=error))
