"""JoinGroup (key 11): become or stay a member; the reply waits until the rebalance completes.

KIP-345: static members from v5. KIP-394: v4+ members get their id first. KIP-800: reasons from
v8. KIP-814: v9 lets a static leader skip the assignment. Below v7 a protocol name of null is "".
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.group.effects import Answer, JoinAnswer
from moldau.broker.group.events import Join
from moldau.broker.handlers.details.authorization import GROUP, GROUP_DENIED, is_denied
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call, ReplyHandle
from moldau.broker.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)

FIRST_VERSION_WITH_MEMBER_ID_REQUIRED = 4
FIRST_VERSION_WITH_SKIP = 9


class JoinReply(ReplyHandle):
    __slots__ = ()

    def answered(self, answer: Answer) -> None:
        assert isinstance(answer, JoinAnswer)
        self._call.reply(
            JoinGroupResponse(
                error_code=answer.error,
                generation_id=answer.generation_id,
                protocol_type=answer.protocol_type,
                protocol_name=answer.protocol_name,
                leader=answer.leader,
                skip_assignment=answer.skip_assignment,
                member_id=answer.member_id,
                members=[
                    JoinGroupResponseMember(member.member_id, member.instance_id, member.metadata)
                    for member in answer.members
                ],
            )
        )


def handle(broker: Broker, request: JoinGroupRequest, call: Call) -> None:
    if is_denied(broker, call, Operation.READ, GROUP, request.group_id):
        JoinReply(call).answered(JoinAnswer(GROUP_DENIED))
        return
    version = call.header.api_version
    event = Join(
        JoinReply(call),
        request.member_id,
        request.group_instance_id,
        call.header.client_id or "",
        call.peer,
        request.session_timeout_ms,
        request.rebalance_timeout_ms if version > 0 else request.session_timeout_ms,
        request.protocol_type,
        tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        version >= FIRST_VERSION_WITH_MEMBER_ID_REQUIRED,
        version >= FIRST_VERSION_WITH_SKIP,
        request.reason,
    )
    broker.group_coordinator.submit(request.group_id, event)
