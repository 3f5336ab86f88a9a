"""The target assignment: when one is due, its inputs and its result; and what it depends on: the
topics that patterns match, and topics that change."""

from __future__ import annotations

from collections.abc import Mapping

from moldau.broker.group.assign.job import Job, Seat
from moldau.broker.group.effects import Assign, Resolve
from moldau.broker.group.events import Assigned, Resolved, TopicsChanged
from moldau.broker.group.group_base import TimerKind
from moldau.broker.group.modern.core import GONE, UNSTORED, ModernCore
from moldau.broker.group.modern.group_data import ConsumerGroupData

RETRY_MS = 1_000


def check(group: ModernCore) -> None:
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


def _job(group: ModernCore) -> Job:
    topics_of: dict[tuple[frozenset[str], str], frozenset[str]] = {}
    seats = []
    for member in group.members.values():
        key = (member.names, member.pattern)
        topics = topics_of.get(key)
        if topics is None:
            topics = topics_of[key] = group.subscriptions.topics_of(member)
        seats.append(Seat(member.member_id, member.instance_id, topics, member.target))
    name, assignor = group.wanted_assignor()
    return Job(
        group.group_id,
        group.group_epoch,
        assignor,
        tuple(seats),
        tuple(group.subscriptions.facts()),
        name,
    )


def assigned(group: ModernCore, event: Assigned) -> None:
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
        group.target_arrived()
    waiting, group.asking = group.asking, []
    for member_id, request in waiting:
        asking = group.members.get(member_id)
        if asking is None:
            group.reply(request.call, GONE)
        elif group.target_epoch == 0:
            group.reply(request.call, UNSTORED)
        else:
            group.conclude(asking, request)
    check(group)


def await_joins(group: ConsumerGroupData) -> None:
    """Classic members have to join again to reach the target. Those that do not are removed."""
    for member in group.classic_members.values():
        if member.epoch < group.target_epoch:
            at_ms = group.now_ms + member.rebalance_timeout_ms
            group.arm(TimerKind.CLASSIC_JOIN, at_ms, member.member_id)


# --- patterns, and topics that change ---


def match_new_patterns(group: ConsumerGroupData) -> None:
    """Resolve patterns that were not in use before."""
    known = group.subscriptions.patterns
    if group.resolving or not known:
        return
    fresh = tuple(name for name, one in known.items() if one.topics is None)
    if fresh:
        _match(group, fresh, None)


def match_patterns_again(group: ConsumerGroupData) -> None:
    """Match all topics once: some may have been created while the group was not loaded."""
    if group.subscriptions.patterns:
        _match(group, tuple(group.subscriptions.patterns), None)


def _match(
    group: ConsumerGroupData, patterns: tuple[str, ...], names: frozenset[str] | None
) -> None:
    group.resolving = True
    group.effects.append(Resolve(group.group_id, patterns, names))


def resolved(group: ConsumerGroupData, event: Resolved) -> None:
    group.resolving = False
    group.last_match_ms = group.now_ms
    if event.matches is None:
        # This is a defect in the broker: keep the known matches, and try again soon.
        group.refresh_ms = group.now_ms + group.config.consumer.pattern_pause_ms
    else:
        _take_over(group, event.matches, of_all=event.of_all)
        match_new_patterns(group)
    _arm_patterns(group)
    check(group)


def _take_over(
    group: ConsumerGroupData, matches: Mapping[str, frozenset[str]], *, of_all: bool
) -> None:
    if of_all:
        group.refresh_ms = group.now_ms + group.config.consumer.pattern_refresh_ms
    changed = [
        group.subscriptions.match(pattern, topics, of_all=of_all)
        for pattern, topics in matches.items()
    ]
    if matches:
        group.head_changed = True
    if any(changed):
        group.raise_epoch("expressions stand for other topics")


def _arm_patterns(group: ConsumerGroupData) -> None:
    if not group.subscriptions.patterns:
        group.unmatched.clear()
        group.cancel(TimerKind.PATTERNS)
        return
    at_ms = group.refresh_ms
    if group.unmatched:
        at_ms = min(at_ms, group.last_match_ms + group.config.consumer.pattern_pause_ms)
    group.arm(TimerKind.PATTERNS, max(at_ms, group.now_ms))


def patterns_timer_fired(group: ConsumerGroupData) -> None:
    patterns = tuple(group.subscriptions.patterns)
    if not patterns or group.resolving:
        return
    if group.now_ms >= group.refresh_ms:
        group.unmatched.clear()
        _match(group, patterns, None)
    elif group.unmatched:
        names = frozenset(group.unmatched)
        group.unmatched.clear()
        _match(group, patterns, names)
    else:
        _arm_patterns(group)


def topics_changed(group: ConsumerGroupData, event: TopicsChanged) -> None:
    if not group.members:
        return
    if group.subscriptions.rehash(event.names):
        group.raise_epoch("subscribed topics have changed")
    if group.subscriptions.patterns:
        group.unmatched.update(
            name for name in event.names if group.topics.by_name(name) is not None
        )
        if group.unmatched and not group.resolving:
            _arm_patterns(group)
    check(group)
