"""How far a mirror is: what the command shows, and prints with --json."""

from __future__ import annotations

import msgspec

from moldau.ops.mirror.acls import Acls
from moldau.ops.mirror.groups import Groups
from moldau.ops.mirror.topics import TopicMirror, Topics


class TopicReport(msgspec.Struct, frozen=True):
    topic: str
    state: str  # mirroring, refused or cut over
    partitions: int
    records: int  # copied by this run
    bytes: int
    lag: int | None  # offsets that are not here yet; None: not known yet
    why: str | None  # it is refused
    left_out: list[str]  # configuration that is not copied


class GroupReport(msgspec.Struct, frozen=True):
    group: str
    offsets: int  # committed here as at the source
    waiting: int  # for records that are not here yet
    active_here: bool
    why: str | None


class Report(msgspec.Struct, frozen=True):
    records: int
    bytes: int
    lag: int | None
    topics: list[TopicReport]
    groups: list[GroupReport]
    acls: int  # made by this run
    acls_why: str | None  # none are copied
    trouble: str | None  # why nothing is copied at the moment


def report_of(
    topics: Topics, groups: Groups | None, acls: Acls | None, trouble: str | None
) -> Report:
    reports = [_topic(one) for one in sorted(topics.by_name.values(), key=lambda one: one.name)]
    lags = [one.lag for one in reports if one.state == "mirroring"]
    known = [lag for lag in lags if lag is not None]
    return Report(
        sum(one.records for one in reports),
        sum(one.bytes for one in reports),
        sum(known) if len(known) == len(lags) else None,
        reports,
        [
            GroupReport(name, one.offsets, one.waiting, one.is_active_here, one.why)
            for name, one in sorted(groups.by_id.items())
        ]
        if groups is not None
        else [],
        len(acls.made) if acls is not None else 0,
        acls.why if acls is not None else None,
        trouble,
    )


def _topic(topic: TopicMirror) -> TopicReport:
    lags = [one.lag for one in topic.partitions]
    known = [lag for lag in lags if lag is not None]
    return TopicReport(
        topic.name,
        topic.state,
        len(topic.partitions),
        sum(one.records for one in topic.partitions),
        sum(one.bytes for one in topic.partitions),
        sum(known) if len(known) == len(lags) else None,
        topic.why,
        sorted(topic.left_out.values()),
    )
