"""LeaveGroup (key 13): remove members. KIP-345: several at once, also by admin clients, from v3."""

from __future__ import annotations

from moldau.broker.errors import ErrorCode
from moldau.broker.group.effects import Answer, LeaveAnswer
from moldau.broker.group.events import Leave, LeavingMember
from moldau.broker.handlers.authorization import GROUP, GROUP_DENIED, is_denied
from moldau.broker.handlers.context import Broker
from moldau.broker.handlers.group_token import GroupReplyHandle
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)

FIRST_VERSION_WITH_MEMBERS = 3


class LeaveReplyHandle(GroupReplyHandle):
    __slots__ = ()

    def answered(self, answer: Answer) -> None:
        assert isinstance(answer, LeaveAnswer)
        members = [
            MemberResponse(member.member_id, member.instance_id, member.error)
            for member in answer.members
        ]
        error = answer.error
        if self._call.header.api_version < FIRST_VERSION_WITH_MEMBERS and not error and members:
            error = ErrorCode(members[0].error_code)
        self._call.reply(LeaveGroupResponse(error_code=error, members=members))


def handle(broker: Broker, request: LeaveGroupRequest, call: Call) -> None:
    if is_denied(broker, call, Operation.READ, GROUP, request.group_id):
        LeaveReplyHandle(call).answered(LeaveAnswer(GROUP_DENIED))
        return
    members: tuple[LeavingMember, ...]
    if call.header.api_version < FIRST_VERSION_WITH_MEMBERS:
        members = (LeavingMember(request.member_id),)
    else:
        members = tuple(
            LeavingMember(item.member_id, item.group_instance_id, item.reason)
            for item in request.members
        )
    broker.group_coordinator.submit(request.group_id, Leave(LeaveReplyHandle(call), members))
