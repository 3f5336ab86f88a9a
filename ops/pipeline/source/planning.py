"""Partitions to read and their offsets, for the driver.

The first request has to succeed at once, so that a wrong address is reported at once. Later ones
are retried while a broker restarts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from moldau.broker.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.ops.client import Backoff, ClientError, Cluster, TopicPartition
from moldau.ops.pipeline.errors import (
    DataLoss,
    PipelineError,
    beyond_the_end,
    offsets_trimmed,
    partition_gone,
)
from moldau.ops.pipeline.source.fetch import OffsetRange, connect
from moldau.ops.pipeline.source.offsets import EARLIEST, LATEST, Offsets
from moldau.ops.pipeline.source.options import Boundary, Options

logger = logging.getLogger("moldau.pipeline")

T = TypeVar("T")
TOPIC = 2  # the kind of resource, in DescribeConfigs
STORAGE = "moldau.storage"


class Planner:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._cluster: Cluster | None = None
        self._has_reached = False
        self._storages: dict[str, str | None] = {}

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _ask(self, question: Callable[[Cluster], T]) -> T:
        backoff = Backoff(self._options.fetch.patience_s)
        while True:
            try:
                if self._cluster is None:
                    self._cluster = connect(self._options.fetch)
                answer = question(self._cluster)
            except ClientError as fault:
                self.close()
                if not self._has_reached:
                    raise
                logger.warning("%s; retrying", fault)
                if not backoff.wait():
                    raise
            else:
                self._has_reached = True
                return answer

    # --- partitions ---

    def partitions(self) -> set[TopicPartition]:
        """The existing partitions that assign, subscribe or subscribePattern chooses."""
        options = self._options
        names: Collection[str] | None
        if options.assign is not None:
            names = {partition.topic for partition in options.assign}
        else:
            names = options.subscribe
        pattern = None if options.pattern is None else re.compile(options.pattern)
        answer = self._ask(lambda cluster: cluster.metadata(names))
        found = {
            TopicPartition(topic.name or "", partition.partition_index)
            for topic in answer.topics
            if topic.error_code == 0
            and (pattern is None or (not topic.is_internal and pattern.fullmatch(topic.name or "")))
            for partition in topic.partitions
        }
        return found if options.assign is None else found & set(options.assign)

    def topic_ids(self, names: Collection[str]) -> dict[str, bytes]:
        """The ids of topics that exist; a topic that was deleted and created again has another."""
        answer = self._ask(lambda cluster: cluster.metadata(sorted(names)))
        return {topic.name or "": topic.topic_id for topic in answer.topics if not topic.error_code}

    def native(self, names: Collection[str]) -> set[str]:
        """The topics with moldau.storage=native, shared with Redis applications.

        Their offsets are not dense, and their batches are built for each reply.
        """
        unknown = sorted(set(names) - self._storages.keys())
        if unknown:
            asked = [DescribeConfigsResource(TOPIC, name, [STORAGE]) for name in unknown]
            answer = self._ask(lambda cluster: cluster.call(DescribeConfigsRequest(asked)))
            for result in answer.results:
                # It never changes. Other brokers do not have this configuration.
                values = [one.value for one in result.configs if one.name == STORAGE]
                if not result.error_code:
                    self._storages[result.resource_name] = values[0] if values else "log"
        return {name for name in names if self._storages.get(name) == "native"}

    def existing(self) -> set[TopicPartition]:
        """`partitions` at the start of a read, when everything that is named has to exist."""
        found = self.partitions()
        options = self._options
        missing: list[str] = []
        if options.assign is not None:
            missing = [str(partition) for partition in options.assign if partition not in found]
        elif options.subscribe is not None:
            missing = sorted(set(options.subscribe) - {partition.topic for partition in found})
        if missing:
            raise PipelineError(
                f"there is no {', '.join(missing)}; `moldau topics list` shows what exists, "
                "`moldau topics create` creates a topic"
            )
        return found

    # --- offsets ---

    def latest(self, partitions: Collection[TopicPartition]) -> Offsets:
        """End offsets; with read_committed, the start of the first open transaction."""
        isolation = self._options.fetch.isolation
        wanted = dict.fromkeys(partitions, LATEST)
        return self._ask(lambda cluster: cluster.list_offsets(wanted, isolation))

    def earliest(self, partitions: Collection[TopicPartition]) -> Offsets:
        wanted = dict.fromkeys(partitions, EARLIEST)
        return self._ask(lambda cluster: cluster.list_offsets(wanted))

    def resolve(
        self, where: Boundary, partitions: Collection[TopicPartition], *, is_start: bool
    ) -> Offsets:
        """The offsets that an option stands for."""
        if where.each is not None and set(where.each) != set(partitions):
            differing = sorted(set(where.each) ^ set(partitions))
            raise PipelineError(
                f"{where.option} has to name every partition that is read and no other; "
                f"these differ: {', '.join(map(str, differing))}. Use -2 for the earliest offset"
                " of a partition, -1 for the latest"
            )
        each = dict.fromkeys(partitions, where.all) if where.each is None else where.each
        if where.by_time:
            return self._by_time(where, each, is_start=is_start)
        latest = self.latest([partition for partition, offset in each.items() if offset == LATEST])
        earliest = self.earliest(
            [partition for partition, offset in each.items() if offset == EARLIEST]
        )
        return {**each, **latest, **earliest}

    def _by_time(
        self, where: Boundary, each: Mapping[TopicPartition, int], *, is_start: bool
    ) -> Offsets:
        found = self._ask(lambda cluster: cluster.list_offsets(each))
        unmatched = [partition for partition, offset in found.items() if offset < 0]
        if unmatched and is_start and not self._options.latest_when_no_match:
            raise PipelineError(
                f"{where.option}: {', '.join(map(str, sorted(unmatched)))} has no record of that"
                " time or later; give an earlier timestamp, or set"
                " startingOffsetsByTimestampStrategy=latest to begin at the end"
            )
        latest = self.latest(list(each))
        # With read_committed a timestamp may lie beyond what can be read yet.
        return {
            partition: latest[partition] if offset < 0 else min(offset, latest[partition])
            for partition, offset in found.items()
        }

    # --- ranges ---

    def ranges(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> list[OffsetRange]:
        """Ranges from start to end of each partition; new ones begin at their earliest offset."""
        new = ends.keys() - starts.keys()
        first = self.earliest(new)
        for partition in sorted(new):
            if partition not in first:
                self._lost(partition_gone(partition))
            elif first[partition] > 0:
                self._lost(offsets_trimmed(partition, 0, first[partition]))
        self.check_lost(starts, ends)
        made = []
        for partition, end in sorted(ends.items()):
            start = starts.get(partition, first.get(partition, end))
            if start > end:
                self._lost(beyond_the_end(partition, start, end))
            elif start < end:
                made.append(OffsetRange(partition, start, end))
        return made

    def check_lost(
        self, starts: Mapping[TopicPartition, int], present: Collection[TopicPartition]
    ) -> None:
        for partition in sorted(starts.keys() - set(present)):
            self._lost(partition_gone(partition))

    def _lost(self, error: DataLoss) -> None:
        if self._options.fetch.fail_on_data_loss:
            raise error
        logger.warning("%s", error)
