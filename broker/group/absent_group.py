"""Answers to requests that fail as a whole, or that name a group that does not exist."""

from __future__ import annotations

from moldau.broker.errors import ErrorCode
from moldau.broker.group.classic import join
from moldau.broker.group.config import GroupConfig
from moldau.broker.group.effects import (
    Answer,
    DeleteAnswer,
    HeartbeatAnswer,
    JoinAnswer,
    LeaveAnswer,
    LeftMember,
    SyncAnswer,
)
from moldau.broker.group.events import (
    ConsumerHeartbeat,
    Delete,
    Join,
    Leave,
    Request,
    ShareHeartbeat,
    Sync,
)
from moldau.broker.group.group_base import GroupBase
from moldau.broker.group.states import GroupState


def answer_absent(config: GroupConfig, group_id: str, event: Request) -> Answer:
    """Answer a request that does not create the group."""
    match event:
        case Join():
            error = join.check_request(config, event)
            if error is not ErrorCode.INVALID_SESSION_TIMEOUT:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            return refuse(event, error)
        case Leave():
            return LeaveAnswer(
                ErrorCode.NONE,
                tuple(
                    LeftMember(one.member_id, one.instance_id, ErrorCode.UNKNOWN_MEMBER_ID)
                    for one in event.members
                ),
            )
        case Sync():
            return refuse(event, ErrorCode.UNKNOWN_MEMBER_ID)
        case Delete():
            return refuse(event, ErrorCode.GROUP_ID_NOT_FOUND)
        case ConsumerHeartbeat() | ShareHeartbeat():
            return not_found(group_id, event)


def not_found(group_id: str, event: ConsumerHeartbeat | ShareHeartbeat) -> HeartbeatAnswer:
    kind = "Share" if isinstance(event, ShareHeartbeat) else "Consumer"
    return HeartbeatAnswer(ErrorCode.GROUP_ID_NOT_FOUND, f"{kind} group {group_id} not found.")


def refuse_other_protocol(group: GroupBase, event: Request) -> Answer:
    """Answer a request of the consumer protocol to a group that stays classic."""
    if group.state is GroupState.DEAD:
        return refuse(event, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    text = f"Group {group.group_id} is not a consumer group."
    return HeartbeatAnswer(ErrorCode.GROUP_ID_NOT_FOUND, text)


def refuse(event: Request, error: ErrorCode) -> Answer:
    """Answer a request that fails as a whole."""
    match event:
        case Join():
            return JoinAnswer(error, event.member_id)
        case Sync():
            return SyncAnswer(error)
        case Leave():
            return LeaveAnswer(error)
        case Delete():
            return DeleteAnswer(error)
        case ConsumerHeartbeat() | ShareHeartbeat():
            return HeartbeatAnswer(error)
