"""The target assignment: when one is due, its inputs, and its result."""

from __future__ import annotations

from collections import Counter

from moldau.broker.group.assign.assignors import ASSIGNORS
from moldau.broker.group.assign.job import Job, Seat
from moldau.broker.group.effects import Assign
from moldau.broker.group.events import Assigned
from moldau.broker.group.modern.answers import GONE, UNSTORED, conclude
from moldau.broker.group.modern.group_data import ConsumerGroupData
from moldau.broker.group.timers import TimerKind

RETRY_MS = 1_000


def check(group: ConsumerGroupData) -> None:
    """Start computing a target if one is due. If it will be due later, arm a timer."""
    if group.assigning is not None or not group.members:
        return
    if group.group_epoch <= group.target_epoch:
        return
    if group.target_epoch == 0 and group.resolving:
        return  # the first target waits for the topics that patterns match
    last_ms = group.last_target_ms
    due_ms = group.now_ms if last_ms is None else last_ms + group.limits.assignment_interval_ms
    if due_ms > group.now_ms:
        group.arm(TimerKind.TARGET, due_ms)
        return
    group.cancel(TimerKind.TARGET)
    group.last_target_ms = group.now_ms
    group.assigning = group.group_epoch
    group.effects.append(Assign(_job(group)))


def _job(group: ConsumerGroupData) -> Job:
    topics_of: dict[tuple[frozenset[str], str], frozenset[str]] = {}
    seats = []
    for member in group.members.values():
        key = (member.names, member.pattern)
        topics = topics_of.get(key)
        if topics is None:
            topics = topics_of[key] = group.subscriptions.topics_of(member)
        seats.append(Seat(member.member_id, member.instance_id, topics, member.target))
    name = preferred_assignor(group)
    return Job(
        group.group_id,
        group.group_epoch,
        ASSIGNORS[name],
        tuple(seats),
        tuple(group.subscriptions.facts()),
        name,
    )


def preferred_assignor(group: ConsumerGroupData) -> str:
    """Return the assignor that most members ask for, or else the first configured one."""
    known = group.config.consumer.assignors
    votes = Counter(member.assignor for member in group.members.values() if member.assignor)
    wanted = [name for name, _ in votes.most_common() if name in known]
    return wanted[0] if wanted else known[0]


def assigned(group: ConsumerGroupData, event: Assigned) -> None:
    """Apply a target, which was computed for the epoch in which it was requested."""
    job = event.job
    if job.epoch != group.assigning:
        return
    group.assigning = None
    if event.targets is None:
        group.arm(TimerKind.TARGET, group.now_ms + RETRY_MS)
    else:
        group.target_epoch, group.resting = job.epoch, 0
        group.assignor, group.head_changed = job.name, True
        # A static member may have restarted, with another id, since the target was requested.
        of_instance = {seat.instance_id: event.targets[seat.member_id] for seat in job.statics()}
        for member in group.members.values():
            found = event.targets.get(member.member_id)
            if found is None and member.instance_id is not None:
                found = of_instance.get(member.instance_id)
            if found is not None and found is not member.target:
                member.target = found
                group.changed(member)
        await_joins(group)
    waiting, group.asking = group.asking, []
    for member_id, request in waiting:
        asking = group.members.get(member_id)
        if asking is None:
            group.reply(request.call, GONE)
        elif group.target_epoch == 0:
            group.reply(request.call, UNSTORED)
        else:
            conclude(group, asking, request, unsubscribed=True)
    check(group)


def await_joins(group: ConsumerGroupData) -> None:
    """Classic members have to join again to reach the target. Those that do not are removed."""
    for member in group.classic_members.values():
        if member.epoch < group.target_epoch:
            at_ms = group.now_ms + member.rebalance_timeout_ms
            group.arm(TimerKind.CLASSIC_JOIN, at_ms, member.member_id)
