"""How a group of the consumer protocol ends: it is deleted, or its coordinator unloads it."""

from __future__ import annotations

from collections.abc import Iterable

from moldau.broker.errors import ErrorCode
from moldau.broker.group.effects import Answer, DeleteAnswer, HeartbeatAnswer, JoinAnswer
from moldau.broker.group.events import Delete
from moldau.broker.group.modern.group_data import ConsumerGroupData
from moldau.broker.group.modern.writes import PendingAnswer
from moldau.broker.group.states import GroupState
from moldau.broker.group.writes import DeleteGroup, WriteReason


def delete(group: ConsumerGroupData, event: Delete) -> None:
    if group.state is GroupState.DEAD:
        group.reply(event.call, DeleteAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    elif group.members:
        group.reply(event.call, DeleteAnswer(ErrorCode.NON_EMPTY_GROUP))
    else:
        group.cancel_all_timers()
        group.die("deleted")
        group.store(DeleteGroup(event.call))


def unload(group: ConsumerGroupData) -> None:
    """Give the group up to another worker."""
    refuse_waiting(group, ErrorCode.NOT_COORDINATOR)
    group.cancel_all_timers()
    group.assigning, group.resolving = None, False
    if group.state is not GroupState.DEAD:
        group.die("given up")
    group.members, group.by_instance, group.classic_members, group.holders = {}, {}, {}, {}


def refuse_waiting(group: ConsumerGroupData, error: ErrorCode) -> None:
    """Answer every request that waits for a write or a target."""
    refuse(group, group.abandon_writes(), error)


def refuse(group: ConsumerGroupData, reasons: Iterable[WriteReason], error: ErrorCode) -> None:
    for reason in reasons:
        if isinstance(reason, DeleteGroup) and reason.call is not None:
            group.reply(reason.call, DeleteAnswer(error))
        elif isinstance(reason, PendingAnswer):
            group.reply(reason.call, with_error(reason.answer, error, reason.member_id))
    waiting, group.asking = group.asking, []
    for _, request in waiting:
        group.reply(request.call, HeartbeatAnswer(error))


def with_error(answer: Answer, error: ErrorCode, member_id: str) -> Answer:
    """Return the same kind of answer with an error."""
    return JoinAnswer(error, member_id) if isinstance(answer, JoinAnswer) else type(answer)(error)
