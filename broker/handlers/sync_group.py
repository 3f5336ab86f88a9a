"""SyncGroup (key 14): the leader sends the assignment, members get theirs once it is stored.

KIP-345: static members from v3. KIP-559: protocol type and name from v5.
"""

from __future__ import annotations

from moldau.broker.group.effects import Answer, SyncAnswer
from moldau.broker.group.events import Sync
from moldau.broker.handlers.authorization import GROUP, GROUP_DENIED, is_denied
from moldau.broker.handlers.context import Broker
from moldau.broker.handlers.group_token import GroupReplyHandle
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse


class SyncReplyHandle(GroupReplyHandle):
    __slots__ = ()

    def answered(self, answer: Answer) -> None:
        assert isinstance(answer, SyncAnswer)
        self._call.reply(
            SyncGroupResponse(
                error_code=answer.error,
                protocol_type=answer.protocol_type,
                protocol_name=answer.protocol_name,
                assignment=answer.assignment,
            )
        )


def handle(broker: Broker, request: SyncGroupRequest, call: Call) -> None:
    if is_denied(broker, call, Operation.READ, GROUP, request.group_id):
        SyncReplyHandle(call).answered(SyncAnswer(GROUP_DENIED))
        return
    event = Sync(
        SyncReplyHandle(call),
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        request.protocol_type,
        request.protocol_name,
        tuple((item.member_id, item.assignment) for item in request.assignments),
    )
    broker.group_coordinator.submit(request.group_id, event)
