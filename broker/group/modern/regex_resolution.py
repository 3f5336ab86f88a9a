"""Resolves the patterns of a group to topics, and reacts to topics that change."""

from __future__ import annotations

from collections.abc import Mapping

from moldau.broker.group.effects import Resolve
from moldau.broker.group.events import Resolved, TopicsChanged
from moldau.broker.group.modern import target
from moldau.broker.group.modern.group_data import ConsumerGroupData
from moldau.broker.group.timers import TimerKind


def check(group: ConsumerGroupData) -> None:
    """Resolve patterns that were not in use before."""
    known = group.subscriptions.patterns
    if group.resolving or not known:
        return
    fresh = tuple(name for name, one in known.items() if one.topics is None)
    if fresh:
        _resolve(group, fresh, None)


def restored(group: ConsumerGroupData) -> None:
    """Match all topics once: some may have been created while the group was not loaded."""
    if group.subscriptions.patterns:
        _resolve(group, tuple(group.subscriptions.patterns), None)


def _resolve(
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
        check(group)
    _arm(group)
    target.check(group)


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


def _arm(group: ConsumerGroupData) -> None:
    if not group.subscriptions.patterns:
        group.unmatched.clear()
        group.cancel(TimerKind.PATTERNS)
        return
    at_ms = group.refresh_ms
    if group.unmatched:
        at_ms = min(at_ms, group.last_match_ms + group.config.consumer.pattern_pause_ms)
    group.arm(TimerKind.PATTERNS, max(at_ms, group.now_ms))


def timer_fired(group: ConsumerGroupData) -> None:
    patterns = tuple(group.subscriptions.patterns)
    if not patterns or group.resolving:
        return
    if group.now_ms >= group.refresh_ms:
        group.unmatched.clear()
        _resolve(group, patterns, None)
    elif group.unmatched:
        names = frozenset(group.unmatched)
        group.unmatched.clear()
        _resolve(group, patterns, names)
    else:
        _arm(group)


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
            _arm(group)
    target.check(group)
