"""The topics of a mirror: made in Moldau as the source has them, and followed when they change.

A mirrored topic carries a mark in its configuration (moldau.mirror.source), which names the topic
of the source. It keeps clients from producing to it, and tells a mirror that is started again which
topics are its own. A topic without it is somebody else's: it is refused unless nothing was ever
written to it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from moldau.broker.errors import ErrorCode
from moldau.broker.settings.kafka.topic_keys import MIRROR_ENDED, MIRROR_SOURCE
from moldau.broker.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.broker.wire.messages.metadata import MetadataResponseTopic
from moldau.ops.client import EARLIEST, LATEST, ClientError, Cluster, TopicPartition
from moldau.ops.mirror.partition import PartitionMirror
from moldau.ops.mirror.plan import (
    Configs,
    Refused,
    SourceConfig,
    chosen,
    config_changes,
    configs_to_copy,
    mark_of,
)
from moldau.ops.operations.configs import TOPIC, alter_topic_configs, config_values, topic_configs
from moldau.ops.operations.topics import add_partitions, create_topic

DEFAULT_CONFIG = 5  # the source of a value that nobody has set
TOPICS_OF_A_REQUEST = 200
MISSED = 3  # a broker that starts may not know every topic yet

# The end of a mark whose mirror has ended, once it is known that everything is here.
MIRROR_LEVEL = ":level" + MIRROR_ENDED

# Faults that do not refuse a topic: all of it is tried again. Another mirror may have just made it.
_NOT_OF_A_TOPIC = frozenset(
    {ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TOPIC_ALREADY_EXISTS}
)

MIRRORING, REFUSED, CUT_OVER = "mirroring", "refused", "cut over"


class TopicMirror:
    """One topic, and what is known of it."""

    def __init__(self, name: str, mark: str) -> None:
        self.name = name
        self.mark = mark
        self.state = MIRRORING
        self.why: str | None = None  # it is refused
        self.is_ending = False  # a cut-over was interrupted: to be completed
        self.left_out: dict[str, str] = {}  # configuration that is not copied
        self.partitions: list[PartitionMirror] = []
        self.missed = 0  # so often in a row the source did not list it

    def refuse(self, why: str) -> None:
        self.state, self.why = REFUSED, why
        for one in self.partitions:
            one.refuse(why)

    def end(self) -> None:
        """Its clients write to it here now."""
        self.state = CUT_OVER
        for one in self.partitions:
            one.refuse("it was cut over")

    @property
    def is_live(self) -> bool:
        return self.state == MIRRORING


class Topics:
    """All topics of a mirror."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self.by_name: dict[str, TopicMirror] = {}

    @property
    def live(self) -> list[TopicMirror]:
        return [one for one in self.by_name.values() if one.is_live]

    def sync(self, source: Cluster, target: Cluster, *, with_configs: bool) -> None:
        """Follow the source: new topics, new partitions, configuration. Raises ClientError."""
        answer = source.metadata(None)
        found = {topic.name or "": topic for topic in answer.topics if not topic.error_code}
        names = chosen((name for name, one in found.items() if not one.is_internal), self._pattern)
        for topic in self.live:
            topic.missed = 0 if topic.name in names else topic.missed + 1
            if topic.missed >= MISSED:
                topic.refuse("it was deleted at the source; here it stays as it is")
        wanted = {name: found[name] for name in names if self._is_open(name)}
        configs = describe_configs(source, wanted) if with_configs or self._new(wanted) else {}
        present = target.topics(list(wanted))
        marks = config_values(target, list(present), MIRROR_SOURCE) if present else {}
        for name, described in wanted.items():
            mark = mark_of(answer.cluster_id, described.topic_id)
            mirrored = self.by_name.setdefault(name, TopicMirror(name, mark))
            try:
                if mirrored.mark != mark:
                    raise Refused("it was deleted and made again at the source; delete it here")
                _follow(
                    target,
                    mirrored,
                    described,
                    present.get(name),
                    marks.get(name),
                    configs.get(name),
                )
            except Refused as why:
                mirrored.refuse(str(why))
            except ClientError as fault:
                if not fault.code or fault.code in _NOT_OF_A_TOPIC:
                    raise
                mirrored.refuse(str(fault))

    def _is_open(self, name: str) -> bool:
        topic = self.by_name.get(name)
        return topic is None or topic.is_live

    def _new(self, names: Collection[str]) -> bool:
        return any(name not in self.by_name for name in names)


def _follow(
    target: Cluster,
    topic: TopicMirror,
    there: MetadataResponseTopic,
    here: MetadataResponseTopic | None,
    mark: str | None,
    configs: Configs | None,
) -> None:
    """Make the topic here as it is there. Raises Refused and ClientError."""
    partitions = len(there.partitions)
    if configs is not None:
        topic.left_out = configs.left_out
    if here is None:
        if topic.partitions:
            raise Refused("it was deleted here while it was mirrored")
        copied = {} if configs is None else configs.copied
        create_topic(target, topic.name, partitions, [*copied.items(), (MIRROR_SOURCE, topic.mark)])
    else:
        topic.is_ending = mark in (topic.mark + MIRROR_ENDED, topic.mark + MIRROR_LEVEL)
        if mark != topic.mark and not topic.is_ending:
            if topic.partitions and not mark:
                topic.end()
                return
            _check_free(target, topic, here, mark)
            alter_topic_configs(target, topic.name, [(MIRROR_SOURCE, topic.mark)])
            try:
                _check_free(target, topic, here, None)
            except Refused:  # a client has written before every worker knew the mark
                alter_topic_configs(target, topic.name, [(MIRROR_SOURCE, None)])
                raise
        if not topic.is_ending:
            _follow_existing(target, topic, here, partitions, configs)
    known = len(topic.partitions)
    topic.partitions += [
        PartitionMirror(TopicPartition(topic.name, number)) for number in range(known, partitions)
    ]


def _follow_existing(
    target: Cluster,
    topic: TopicMirror,
    here: MetadataResponseTopic,
    partitions: int,
    configs: Configs | None,
) -> None:
    if configs is not None:
        found = topic_configs(target, topic.name)
        present = {one.name: one.value for one in found if one.source == "topic"}
        if changes := config_changes(configs.copied, present):
            alter_topic_configs(target, topic.name, changes.items())
    if len(here.partitions) > partitions:
        raise Refused(
            f"it has {len(here.partitions)} partitions here and {partitions} at the source"
        )
    if len(here.partitions) < partitions:
        _add_partitions(target, topic.name, partitions)
    for one in here.partitions:
        if one.leader_epoch > 0:
            raise Refused(
                f"partition {one.partition_index} has lost records here, with its store; "
                "delete the topic here, and it is mirrored again"
            )


def _add_partitions(target: Cluster, name: str, partitions: int) -> None:
    try:
        add_partitions(target, name, partitions)
    except ClientError as fault:
        if fault.code != ErrorCode.INVALID_PARTITIONS:
            raise
        now = target.topics([name]).get(name)
        if now is None or len(now.partitions) < partitions:
            raise  # else another mirror has added them


def _check_free(
    target: Cluster, topic: TopicMirror, here: MetadataResponseTopic, mark: str | None
) -> None:
    """A topic that is not ours may become a mirror if nothing was ever written to it."""
    if mark:
        raise Refused(
            "it is a mirror of another topic, or of one that was deleted and made again at the "
            "source; delete it here to mirror it again"
        )
    places = [TopicPartition(topic.name, one.partition_index) for one in here.partitions]
    ends = target.list_offsets(dict.fromkeys(places, LATEST))
    starts = target.list_offsets(dict.fromkeys(places, EARLIEST))
    if any(ends.values()) or any(starts.values()):
        raise Refused(
            "it exists here with records of its own, at other offsets; delete it here, or choose "
            "other topics with --topics"
        )


def describe_configs(cluster: Cluster, names: Mapping[str, object]) -> dict[str, Configs]:
    """What is copied of the configuration of topics; those that cannot be described are left
    out."""
    found: dict[str, Configs] = {}
    listed = list(names)
    for first in range(0, len(listed), TOPICS_OF_A_REQUEST):
        resources = [
            DescribeConfigsResource(TOPIC, name, None)
            for name in listed[first : first + TOPICS_OF_A_REQUEST]
        ]
        for result in cluster.call(DescribeConfigsRequest(resources)).results:
            if not result.error_code:
                found[result.resource_name] = configs_to_copy(
                    SourceConfig(one.name, one.value, one.config_source == DEFAULT_CONFIG)
                    for one in result.configs
                    if not one.is_sensitive
                )
    return found
