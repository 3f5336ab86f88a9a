"""The last part of a heartbeat: one step towards the target, and the answer."""

from __future__ import annotations

from moldau.broker.errors import ErrorCode
from moldau.broker.group.effects import HeartbeatAnswer
from moldau.broker.group.events import ConsumerHeartbeat
from moldau.broker.group.modern.group_data import ConsumerGroupData
from moldau.broker.group.modern.members import Member
from moldau.broker.group.modern.reconcile import Step, reconcile
from moldau.broker.group.modern.writes import PendingAnswer
from moldau.broker.group.topics import TopicIdPartition


def refused(error: ErrorCode, message: str | None = None) -> HeartbeatAnswer:
    return HeartbeatAnswer(error, message)


UNSTORED = refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
GONE = refused(ErrorCode.UNKNOWN_MEMBER_ID)


def advance(
    group: ConsumerGroupData,
    member: Member,
    shown_epoch: int,
    owned: frozenset[TopicIdPartition] | None,
    *,
    unsubscribed: bool = False,
) -> None:
    """Take one step of a member that sent this epoch and these owned partitions."""
    step = reconcile(
        member,
        group.target_epoch,
        owned,
        group.holders,
        lambda topic_id: group.subscriptions.has(member, topic_id),
        unsubscribed=unsubscribed,
    )
    if step is not None and _differs(member, step):
        group.take_step(member, step, shown_epoch)
    member.shown_epoch = max(member.shown_epoch, shown_epoch)
    group.renew_session(member)


def conclude(
    group: ConsumerGroupData,
    member: Member,
    event: ConsumerHeartbeat,
    *,
    unsubscribed: bool = False,
) -> None:
    """Finish a heartbeat once there is a target: take a step and answer."""
    # An owned list proves something only in the member's current epoch. With an earlier epoch, the
    # request may have been sent before the member received the partitions that the list lacks.
    is_behind = event.epoch != member.epoch
    owned = None if is_behind else event.owned
    advance(group, member, event.epoch, owned, unsubscribed=unsubscribed)
    # A member that is behind has missed an answer, and the assignment in it.
    is_new = event.is_full or is_behind or member.sent is not member.assigned
    answer = HeartbeatAnswer(
        ErrorCode.NONE,
        member_id=member.member_id,
        epoch=member.epoch,
        interval_ms=group.limits.heartbeat_interval_ms,
        assigned=member.assigned.keys() if is_new else None,
        rests=member.rests_at == group.target_epoch,
    )
    group.answer_when_stored(
        PendingAnswer(
            member.member_id,
            event.call,
            answer,
            UNSTORED,
            member.epoch,
            member.assigned if is_new else None,
        )
    )


def _differs(member: Member, step: Step) -> bool:
    return (
        member.state is not step.state
        or member.epoch != step.epoch
        or (member.assigned is not step.assigned and member.assigned != step.assigned)
        or member.revoking != step.revoking
    )
