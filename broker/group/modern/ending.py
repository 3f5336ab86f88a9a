"""The two ends of a group of the consumer protocol: deleted, or unloaded by its coordinator."""

from __future__ import annotations

from collections.abc import Iterable

from moldau.broker.errors import ErrorCode
from moldau.broker.group.effects import Answer, DeleteAnswer, HeartbeatAnswer, JoinAnswer
from moldau.broker.group.events import Delete
from moldau.broker.group.modern.core import ConsumerCore
from moldau.broker.group.modern.writes import PendingAnswer
from moldau.broker.group.states import GroupState
from moldau.broker.group.writes import DeleteGroup, WriteReason


def delete(group: ConsumerCore, event: Delete) -> None:
    if group.state is GroupState.DEAD:
        group.reply(event.call, DeleteAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    elif group.members:
        group.reply(event.call, DeleteAnswer(ErrorCode.NON_EMPTY_GROUP))
    else:
        group.cancel_all_timers()
        group.die("deleted")
        group.store(DeleteGroup(event.call))


def deleted(group: ConsumerCore, wanted: DeleteGroup, error: ErrorCode) -> None:
    """One that failed may have happened: the group stays Dead, and it is tried again."""
    if wanted.call is not None:
        group.reply(wanted.call, DeleteAnswer(error))
    if error is ErrorCode.NONE:
        group.cancel_all_timers()
    else:
        group.store_later()


def unload(group: ConsumerCore) -> None:
    """Another worker owns the group from now on."""
    refuse_waiting(group, ErrorCode.NOT_COORDINATOR)
    group.cancel_all_timers()
    group.assigning, group.resolving = None, False
    if group.state is not GroupState.DEAD:
        group.die("given up")
    group.members, group.by_instance, group.guests, group.holders = {}, {}, {}, {}


def refuse_waiting(group: ConsumerCore, error: ErrorCode) -> None:
    """Answer every request that waits for a write or a target."""
    refuse(group, group.abandon_writes(), error)


def refuse(group: ConsumerCore, purposes: Iterable[WriteReason], error: ErrorCode) -> None:
    for purpose in purposes:
        if isinstance(purpose, DeleteGroup) and purpose.call is not None:
            group.reply(purpose.call, DeleteAnswer(error))
        elif isinstance(purpose, PendingAnswer):
            group.reply(purpose.call, with_error(purpose.answer, error, purpose.member_id))
    waiting, group.asking = group.asking, []
    for _, request in waiting:
        group.reply(request.call, HeartbeatAnswer(error))


def with_error(answer: Answer, error: ErrorCode, member_id: str) -> Answer:
    """The same kind of answer, but an error."""
    return JoinAnswer(error, member_id) if isinstance(answer, JoinAnswer) else type(answer)(error)
